# Links the library and the command so that they run on an older glibc than this machine's, as a wheel for other machines has to.
#
#   OCTAVO_GLIBC=2.28   the oldest glibc to run on; empty (the default): this machine's
#
# Three things make this possible. The linker sees libraries that have the symbols of that glibc alone (glibc/make_link_stubs.py). The
# few functions that are newer, or that newer headers rename, are linked statically (glibc/compat.c, and glibc/start.c for a
# program). libstdc++ and the libraries of the command are linked statically too. A function that is still missing is an error of
# the linker, so such a build cannot need a newer glibc.

set(OCTAVO_GLIBC "" CACHE STRING "The oldest glibc to run on, for example 2.28; empty: this machine's")

if(OCTAVO_GLIBC)
  enable_language(C)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(octavo_glibc_stubs ${PROJECT_BINARY_DIR}/glibc-${OCTAVO_GLIBC})
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/glibc/make_link_stubs.py ${CMAKE_C_COMPILER} ${OCTAVO_GLIBC} ${octavo_glibc_stubs}
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "OCTAVO_GLIBC=${OCTAVO_GLIBC}: the stub libraries were not written; the lines above say why")
  endif()
  add_library(octavo_glibc_compat OBJECT ${PROJECT_SOURCE_DIR}/cmake/glibc/compat.c)
  add_library(octavo_glibc_start OBJECT ${PROJECT_SOURCE_DIR}/cmake/glibc/start.c)
  set_target_properties(octavo_glibc_compat PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()

# Applies OCTAVO_GLIBC to a shared library or a program.
function(octavo_link_old_glibc target)
  if(NOT OCTAVO_GLIBC)
    return()
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:octavo_glibc_compat>)
  # Before 2.34 threads, dlopen and clocks are in libraries of their own, which no symbol of the stubs makes the linker add.
  target_link_options(${target} PRIVATE -L${octavo_glibc_stubs} -static-libstdc++ LINKER:--allow-shlib-undefined
    LINKER:--no-as-needed -lpthread -ldl -lrt -lm LINKER:--as-needed)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:octavo_glibc_start>)
    target_link_options(${target} PRIVATE LINKER:--wrap=__libc_start_main)
  endif()
endfunction()
