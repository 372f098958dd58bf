# octavo_add_test(<name> <source>... [LABELS fast|gpu|nightly...] [TIMEOUT seconds] [COST seconds] [PUBLIC_API] [LIBRARIES target...])
# octavo_add_pytest(<name> <file or folder>... [LABELS fast|gpu|nightly] [TIMEOUT seconds] [COST seconds] [ENVIRONMENT name=value...])
#
# COST is a rough duration on two cores. ctest starts the most costly tests first, so that none of them is left at the end.
#
# A test is one GoogleTest binary in <build>/tests and one entry in ctest; the default label is `fast`. A test links the library's
# objects statically and can include src/ as well as include/, so internals can be tested although the shared library hides them.
# With PUBLIC_API it links the library as a user would and can include only include/.

octavo_find_googletest()

# Google Test takes a second to compile. Tests are compiled with fewer optimizations, because they spend their time in the
# library.
function(octavo_precompile_gtest target)
  octavo_precompile(${target} FROM octavo_gtest_pch HEADERS <gmock/gmock.h> <gtest/gtest.h> LIBRARIES GTest::gtest GTest::gmock)
endfunction()

function(octavo_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "PUBLIC_API" "TIMEOUT;COST" "LABELS;LIBRARIES")
  if(NOT arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "octavo_add_test(${name}): no sources")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()

  if("gpu" IN_LIST arg_LABELS)
    list(APPEND arg_UNPARSED_ARGUMENTS ${PROJECT_SOURCE_DIR}/tests/support/gpu_main.cc)
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE octavo_internal_flags ${arg_LIBRARIES} GTest::gtest_main GTest::gmock)
  # A test with LibTorch calls octavo_precompile_torch() afterwards.
  octavo_precompile_gtest(${name})
  if(arg_PUBLIC_API)
    target_link_libraries(${name} PRIVATE octavo::octavo)
  else()
    target_link_libraries(${name} PRIVATE octavo_internal)
  endif()

  set(options --gtest_brief=1)
  if(CMAKE_CROSSCOMPILING)
    # A death test restarts its binary without the emulator.
    list(APPEND options --gtest_filter=-*DeathTest.*)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${options})
  set_tests_properties(${name} PROPERTIES
    LABELS "${arg_LABELS}"
    TIMEOUT ${arg_TIMEOUT}
    SKIP_RETURN_CODE 77
    ENVIRONMENT "UBSAN_OPTIONS=print_stacktrace=1")
  if(arg_COST)
    set_tests_properties(${name} PROPERTIES COST ${arg_COST})
  endif()
endfunction()

# Python tests, run by the Python of .venv.
function(octavo_add_pytest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;COST;LABELS" "ENVIRONMENT")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 1200)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  add_test(NAME ${name}
    COMMAND ${PROJECT_SOURCE_DIR}/.venv/bin/python -m pytest -q -p no:cacheprovider -p skip_code ${arg_UNPARSED_ARGUMENTS}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Byte code is kept in the build folder, not next to the sources. Torch's threads must not spin while tests run in parallel.
  set_tests_properties(${name} PROPERTIES
    LABELS ${arg_LABELS}
    TIMEOUT ${arg_TIMEOUT}
    SKIP_RETURN_CODE 77
    ENVIRONMENT "PYTHONPYCACHEPREFIX=${PROJECT_BINARY_DIR}/pycache;OMP_WAIT_POLICY=passive;${arg_ENVIRONMENT}"
    ENVIRONMENT_MODIFICATION PYTHONPATH=path_list_prepend:${PROJECT_SOURCE_DIR}/tests/support)
  if(arg_COST)
    set_tests_properties(${name} PROPERTIES COST ${arg_COST})
  endif()
endfunction()
