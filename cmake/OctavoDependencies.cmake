# Third-party code. Each function looks for an installed package first and fetches a pinned version when the machine
# has none, saying so. The library itself needs Highway's headers and threads; the rest serves the command and tests.
# FETCHCONTENT_SOURCE_DIR_<NAME> points a fetch at a local copy.

include(FetchContent)

# Fetched headers are not ours to warn about.
function(octavo_mark_system target)
  get_target_property(dirs ${target} INTERFACE_INCLUDE_DIRECTORIES)
  set_target_properties(${target} PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${dirs}")
endfunction()

function(octavo_fetch name repository tag)
  message(STATUS "octavo: ${name} is not installed; fetching ${tag}")
  set(BUILD_SHARED_LIBS OFF)
  FetchContent_Declare(${name} GIT_REPOSITORY https://github.com/${repository}.git GIT_TAG ${tag} GIT_SHALLOW ON ${ARGN})
  FetchContent_MakeAvailable(${name})
  set(${name}_SOURCE_DIR ${${name}_SOURCE_DIR} PARENT_SCOPE)
endfunction()

# Target octavo_highway: Highway's headers, never its library. The kernels pick their instruction set at compile time,
# one file each, so nothing of libhwy is called and nobody who uses Octavo needs it.
function(octavo_find_highway)
  find_path(OCTAVO_HWY_INCLUDE_DIR hwy/highway.h DOC "The directory that holds hwy/highway.h")
  set(dir ${OCTAVO_HWY_INCLUDE_DIR})
  if(NOT dir)
    # SOURCE_SUBDIR names a folder without a CMakeLists.txt: the sources arrive, nothing of them is built.
    octavo_fetch(highway google/highway 1.0.3 SOURCE_SUBDIR headers_only)
    set(dir ${highway_SOURCE_DIR})
  endif()
  add_library(octavo_highway INTERFACE)
  target_include_directories(octavo_highway SYSTEM INTERFACE ${dir})
endfunction()

function(octavo_find_googletest)
  find_package(GTest QUIET)
  if(NOT TARGET GTest::gmock)
    set(INSTALL_GTEST OFF)
    octavo_fetch(googletest google/googletest v1.14.0)
    foreach(name gtest gtest_main gmock)
      octavo_mark_system(${name})
      if(NOT TARGET GTest::${name})
        add_library(GTest::${name} ALIAS ${name})
      endif()
    endforeach()
  endif()
endfunction()

function(octavo_find_benchmark)
  find_package(benchmark QUIET)
  if(NOT TARGET benchmark::benchmark_main)
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    octavo_fetch(benchmark google/benchmark v1.8.3)
    octavo_mark_system(benchmark)
  endif()
endfunction()

function(octavo_find_cli11)
  find_package(CLI11 QUIET)
  if(NOT TARGET CLI11::CLI11)
    octavo_fetch(cli11 CLIUtils/CLI11 v2.4.2)
    octavo_mark_system(CLI11)
  endif()
endfunction()

function(octavo_find_nlohmann_json)
  find_package(nlohmann_json QUIET)
  if(NOT TARGET nlohmann_json::nlohmann_json)
    octavo_fetch(nlohmann_json nlohmann/json v3.11.3)
    octavo_mark_system(nlohmann_json)
  endif()
endfunction()
