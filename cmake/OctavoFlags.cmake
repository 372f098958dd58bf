# Compiler flags of Octavo's own targets: `octavo_internal_flags` (linked privately, never exported), ccache and the sanitizers.
# Floating point is exact on purpose: CPU and CUDA give the same bits only if the compiler neither contracts a*b+c nor uses
# fast-math, so both are switched off here and after any user flags.

add_library(octavo_internal_flags INTERFACE)
target_compile_features(octavo_internal_flags INTERFACE cxx_std_20)

if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(octavo_cxx_options
    -fno-fast-math -ffp-contract=off
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Wcast-qual
    -Wformat=2 -Wvla -Wmissing-declarations -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND octavo_cxx_options -Wdouble-promotion)  # Clang's version also warns about `double d = f;`
  endif()
  if(OCTAVO_DEVELOPER)
    list(APPEND octavo_cxx_options -Werror)
  endif()
  if(OCTAVO_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND octavo_cxx_options -Wno-maybe-uninitialized)  # false positives in instrumented code
  endif()
  target_compile_options(octavo_internal_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${octavo_cxx_options}>")
else()
  message(WARNING "octavo: ${CMAKE_CXX_COMPILER_ID} is untested; equal bits on every backend need its floating-point "
                  "contraction switched off")
endif()
# CUDA_STANDARD 20 has no effect, because CMake before 3.26 does not know that nvcc supports it.
target_compile_options(octavo_internal_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--fmad=false;--expt-relaxed-constexpr;${OCTAVO_CUDA_COMPRESSION}>")
if(OCTAVO_DEVELOPER)
  target_compile_options(octavo_internal_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()

if(OCTAVO_SANITIZE)
  if(OCTAVO_SANITIZE MATCHES "address" AND OCTAVO_SANITIZE MATCHES "thread")
    message(FATAL_ERROR "OCTAVO_SANITIZE: address and thread cannot be combined")
  endif()
  set(octavo_sanitize_options -fsanitize=${OCTAVO_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${octavo_sanitize_options}>")
  add_link_options(-fsanitize=${OCTAVO_SANITIZE})
endif()

if(PROJECT_IS_TOP_LEVEL)
  find_program(OCTAVO_CCACHE ccache DOC "Compiler cache; empty for none")
  if(OCTAVO_CCACHE)
    foreach(language CXX CUDA)
      if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER ${OCTAVO_CCACHE})
      endif()
    endforeach()
  endif()
endif()

# Applies to the targets that are made after it in a directory. GCC's warnings about memory follow inlined code of the standard
# library and of LibTorch, and report faults that do not exist: overlapping copies in "text" + string (12), copies past the end of
# a list of one element (13 and later).
macro(octavo_no_inlining_warnings)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
    else()
      add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>")
    endif()
  endif()
endmacro()

# For a target without hot loops: a Release build optimizes it less, which saves a fifth to a third of its compile time.
function(octavo_no_hot_loops target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()
