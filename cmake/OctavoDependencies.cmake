# Third-party code. Each function looks for an installed package first; if there is none, it fetches a pinned version and prints
# that. The library itself needs Highway's headers and threads; the command and tests need the rest.
# FETCHCONTENT_SOURCE_DIR_<NAME> sets a local copy.

include(FetchContent)

# Warnings in fetched headers are not Octavo's.
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

# Target octavo_highway: Highway's headers, never its library. Each kernel file chooses its instruction set at compile time, so
# nothing of libhwy is called and users of Octavo do not need it.
function(octavo_find_highway)
  find_path(OCTAVO_HWY_INCLUDE_DIR hwy/highway.h DOC "The directory that holds hwy/highway.h")
  set(dir ${OCTAVO_HWY_INCLUDE_DIR})
  if(NOT dir)
    # SOURCE_SUBDIR names a folder without a CMakeLists.txt, so the sources are fetched but not built.
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

function(octavo_find_cli11)
  find_package(CLI11 QUIET)
  if(NOT TARGET CLI11::CLI11)
    octavo_fetch(cli11 CLIUtils/CLI11 v2.4.2)
    octavo_mark_system(CLI11)
  endif()
endfunction()

function(octavo_find_fmt)
  find_package(fmt QUIET)
  if(NOT TARGET fmt::fmt)
    octavo_fetch(fmt fmtlib/fmt 10.2.1)
    octavo_mark_system(fmt)
  endif()
endfunction()

# octavo_fmt_library(<target> [<library>...]): a static library with fmt's own functions, from the headers that sources with these
# libraries include. Header-only fmt is compiled in every source that formats, which takes one to two seconds each. A compiled
# fmt of the system is not sufficient, because a LibTorch brings headers of another version, which its sources include first.
function(octavo_fmt_library target)
  add_library(${target} STATIC ${PROJECT_SOURCE_DIR}/train/base/fmt.cc)
  target_link_libraries(${target} PRIVATE octavo_internal_flags ${ARGN})
  get_target_property(headers fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(${target} SYSTEM PUBLIC ${headers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fkeep-inline-functions)
  else()
    target_compile_definitions(${target} INTERFACE FMT_HEADER_ONLY)  # Clang does not have this option
  endif()
  octavo_no_hot_loops(${target})
endfunction()

function(octavo_find_nlohmann_json)
  find_package(nlohmann_json QUIET)
  if(NOT TARGET nlohmann_json::nlohmann_json)
    octavo_fetch(nlohmann_json nlohmann/json v3.11.3)
    octavo_mark_system(nlohmann_json)
  endif()
endfunction()

# Target octavo_yaml_cpp: yaml-cpp, whose target is named yaml-cpp before version 0.8 and yaml-cpp::yaml-cpp since.
function(octavo_find_yaml_cpp)
  find_package(yaml-cpp QUIET)
  if(NOT TARGET yaml-cpp AND NOT TARGET yaml-cpp::yaml-cpp)
    set(YAML_CPP_BUILD_TESTS OFF)
    set(YAML_CPP_BUILD_TOOLS OFF)
    set(YAML_CPP_BUILD_CONTRIB OFF)
    set(YAML_CPP_INSTALL OFF)
    octavo_fetch(yaml-cpp jbeder/yaml-cpp yaml-cpp-0.9.0)
    octavo_mark_system(yaml-cpp)
  endif()
  add_library(octavo_yaml_cpp INTERFACE)
  if(TARGET yaml-cpp::yaml-cpp)
    target_link_libraries(octavo_yaml_cpp INTERFACE yaml-cpp::yaml-cpp)
  else()
    target_link_libraries(octavo_yaml_cpp INTERFACE yaml-cpp)
  endif()
endfunction()

# Target octavo_xxhash: the header only. It contains all of xxHash if XXH_INLINE_ALL is defined.
function(octavo_find_xxhash)
  find_path(OCTAVO_XXHASH_INCLUDE_DIR xxhash.h DOC "The directory that holds xxhash.h")
  set(dir ${OCTAVO_XXHASH_INCLUDE_DIR})
  if(NOT dir)
    octavo_fetch(xxhash Cyan4973/xxHash v0.8.3 SOURCE_SUBDIR headers_only)
    set(dir ${xxhash_SOURCE_DIR})
  endif()
  add_library(octavo_xxhash INTERFACE)
  target_include_directories(octavo_xxhash SYSTEM INTERFACE ${dir})
  target_compile_definitions(octavo_xxhash INTERFACE XXH_INLINE_ALL)
endfunction()

# Target octavo_zlib: gzip and CRC-32.
function(octavo_find_zlib)
  find_package(ZLIB QUIET)
  add_library(octavo_zlib INTERFACE)
  if(TARGET ZLIB::ZLIB)
    target_link_libraries(octavo_zlib INTERFACE ZLIB::ZLIB)
  else()
    octavo_fetch(zlib madler/zlib v1.3.1)
    target_include_directories(octavo_zlib SYSTEM INTERFACE ${zlib_SOURCE_DIR} ${CMAKE_BINARY_DIR}/_deps/zlib-build)
    target_link_libraries(octavo_zlib INTERFACE zlibstatic)
  endif()
endfunction()
