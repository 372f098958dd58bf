# Libraries for tests whose kernels emulate another architecture's code path on the local GPU (src/cuda/runtime/arch.h): its
# memory instructions, tables and arithmetic, with no more shared memory than it has. So code paths are tested that no local GPU
# would use.
#
#   OCTAVO_CUDA_AS         architectures, for example 750;800;860;890;1200: each gets a library in <build>/as/<architecture>,
#                          and a run of cuda_test with it (cuda_as_<architecture>). Empty: none.
#   OCTAVO_CUDA_AS_RULES   the rules of update that these libraries emulate (Adam), or `all`; the others are compiled as
#                          usual. Compiling one takes a minute for each architecture.

set(OCTAVO_CUDA_AS "" CACHE STRING "Architectures that tests emulate on the local GPU: 750;800;860;890;1200")
set(OCTAVO_CUDA_AS_RULES Adam CACHE STRING "Rules of update that go it, or all")

function(octavo_as_library arch out)
  set(${out} "${PROJECT_BINARY_DIR}/as/${arch}/${CMAKE_SHARED_LIBRARY_PREFIX}octavo${CMAKE_SHARED_LIBRARY_SUFFIX}" PARENT_SCOPE)
endfunction()

# Adds the libraries. They differ from `octavo` in the kernels of the norm, of the guard and of some rules.
function(octavo_add_as_libraries)
  if(NOT OCTAVO_CUDA_AS)
    return()
  endif()
  get_target_property(type octavo TYPE)
  if(NOT OCTAVO_WITH_CUDA OR NOT type STREQUAL "SHARED_LIBRARY")
    message(FATAL_ERROR "OCTAVO_CUDA_AS: got '${OCTAVO_CUDA_AS}' in a build without CUDA or without shared libraries; "
                        "add -DOCTAVO_CUDA=ON -DBUILD_SHARED_LIBS=ON")
  endif()
  octavo_all_rules(rules)
  set(chosen ${OCTAVO_CUDA_AS_RULES})
  if(chosen STREQUAL "all")
    set(chosen ${rules})
  endif()
  foreach(rule IN LISTS chosen)
    if(NOT rule IN_LIST rules)
      list(JOIN rules ", " known)
      message(FATAL_ERROR "OCTAVO_CUDA_AS_RULES: got '${rule}', expected all, or some of ${known}")
    endif()
  endforeach()

  foreach(arch IN LISTS OCTAVO_CUDA_AS)
    if(NOT arch MATCHES "^[0-9]+0$" OR arch LESS 700)
      message(FATAL_ERROR "OCTAVO_CUDA_AS: got '${arch}', expected a compute capability times 100, as 860 for 8.6")
    endif()
    octavo_kernel_library("_as_${arch}" kernels)
    target_compile_definitions(${kernels} PRIVATE OCTAVO_CUDA_AS=${arch})
    set(objects $<TARGET_OBJECTS:octavo_objects> ${OCTAVO_LIBS_OBJECTS} $<TARGET_OBJECTS:${kernels}>)
    foreach(rule IN LISTS rules)
      if(rule IN_LIST chosen)
        octavo_rule_library(${rule} "_as_${arch}" target)
        target_compile_definitions(${target} PRIVATE OCTAVO_CUDA_AS=${arch})
      else()
        octavo_rule_target(${rule} "" target)
      endif()
      list(APPEND objects $<TARGET_OBJECTS:${target}>)
    endforeach()
    add_library(octavo_as_${arch} SHARED ${objects})
    octavo_library_options(octavo_as_${arch})
    set_target_properties(octavo_as_${arch} PROPERTIES
      OUTPUT_NAME octavo
      LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/as/${arch}")
  endforeach()
endfunction()

# octavo_add_as_tests(<binary> <filter>): runs the tests of a binary that pass the filter with each of these libraries. A
# preloaded library replaces the one that the binary was linked to; a test compares OCTAVO_TEST_LIBRARY with the loaded one.
function(octavo_add_as_tests binary filter)
  foreach(arch IN LISTS OCTAVO_CUDA_AS)
    octavo_as_library(${arch} library)
    add_dependencies(${binary} octavo_as_${arch})
    add_test(NAME cuda_as_${arch} COMMAND ${binary} --gtest_brief=1 "--gtest_filter=${filter}")
    set_tests_properties(cuda_as_${arch} PROPERTIES
      LABELS gpu
      TIMEOUT 600
      ENVIRONMENT "LD_PRELOAD=${library};OCTAVO_TEST_LIBRARY=${library}")
  endforeach()
endfunction()
