# Libraries for tests whose kernels emulate another architecture's code path on the local GPU (src/cuda/runtime/arch.h): its
# steps of memory, its tables, its arithmetic and no more shared memory than it has. So tests also run the code paths that the
# local GPU does not take.
#
#   OCTAVO_CUDA_AS         architectures, for example 750;800;860;890;1200: each gets a library in <build>/as/<architecture>,
#                          and the test cuda_as_<architecture>, which is cuda_test with its kernels. Empty: none.
#   OCTAVO_CUDA_AS_RULES   the rules of update that emulate the architecture (Adam), or `all`; the others are unchanged.
#                          Compiling one takes a minute for each architecture.

set(OCTAVO_CUDA_AS "" CACHE STRING "Architectures that tests emulate on the local GPU: 750;800;860;890;1200")
set(OCTAVO_CUDA_AS_RULES Adam CACHE STRING "Rules of update that emulate them, or all")

# The libraries octavo_as_<architecture>, which differ from `octavo` in the kernels of norm and guard and of some rules; and the
# same objects as octavo_internal_as_<architecture>, as octavo_internal is to `octavo`.
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
    set(objects ${OCTAVO_HOST_OBJECTS} $<TARGET_OBJECTS:${kernels}>)
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
    add_library(octavo_internal_as_${arch} STATIC EXCLUDE_FROM_ALL ${objects})
    set_target_properties(octavo_internal_as_${arch} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(octavo_internal_as_${arch} INTERFACE Threads::Threads ${CMAKE_DL_LIBS} CUDA::cudart_static)
  endforeach()
endfunction()

# octavo_add_as_tests(<test> <filter> <library>...): links the objects of a test, and the libraries that they use, with each of
# these libraries, and runs those of its tests that pass the filter. OCTAVO_TEST_GOES_AS has a test make sure of the kernels.
function(octavo_add_as_tests test filter)
  foreach(arch IN LISTS OCTAVO_CUDA_AS)
    set(name ${test}_as_${arch})
    add_executable(${name} $<TARGET_OBJECTS:${test}>)
    set_target_properties(${name} PROPERTIES
      LINKER_LANGUAGE CXX
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_libraries(${name} PRIVATE ${ARGN} GTest::gtest_main GTest::gmock octavo_internal_as_${arch})
    add_test(NAME cuda_as_${arch} COMMAND ${name} --gtest_brief=1 "--gtest_filter=${filter}")
    set_tests_properties(cuda_as_${arch} PROPERTIES
      LABELS gpu
      SKIP_RETURN_CODE 77
      TIMEOUT 600
      ENVIRONMENT OCTAVO_TEST_GOES_AS=${arch})
  endforeach()
endfunction()
