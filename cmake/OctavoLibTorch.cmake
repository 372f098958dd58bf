# octavo_libtorch(<minimum version> [<place>...]): the target octavo::libtorch, a LibTorch that is linked by its files: include
# folders, libtorch, libtorch_cpu and libc10. TorchConfig.cmake is not used, because that of a CUDA build requires a CUDA toolkit,
# which is not needed here. The build and the installed package use this file.
#
# A place is a LibTorch, a torch wheel's folder, or a folder of CMake files in one. The search order is OCTAVO_LIBTORCH (a CMake
# or an environment variable; if it is set, nothing else is searched), Torch_DIR, CMAKE_PREFIX_PATH, the given places. A target
# `torch` that the project already has, from find_package(Torch), is used as it is.
#
# Sets OCTAVO_LIBTORCH_ROOT and OCTAVO_LIBTORCH_VERSION, or OCTAVO_LIBTORCH_PROBLEM: why there is no target.

# Sets `out` to the folder above `place` that contains include/ and lib/ of a LibTorch, or to nothing.
function(octavo_libtorch_root place out)
  set(${out} "" PARENT_SCOPE)
  foreach(up . .. ../.. ../../..)
    cmake_path(SET root NORMALIZE "${place}/${up}")
    string(REGEX REPLACE "/$" "" root "${root}")
    if(EXISTS "${root}/include/torch/csrc/api/include/torch/torch.h" AND EXISTS "${root}/lib/libtorch${CMAKE_SHARED_LIBRARY_SUFFIX}")
      set(${out} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Newer releases have the numbers in the second header.
function(octavo_libtorch_version root out)
  set(${out} "" PARENT_SCOPE)
  foreach(header torch/csrc/api/include/torch/version.h torch/headeronly/version.h)
    if(EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      if(lines MATCHES "MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+)")
        set(${out} ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3} PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

function(octavo_libtorch_target root)
  add_library(octavo::libtorch INTERFACE IMPORTED GLOBAL)
  set_target_properties(octavo::libtorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS _GLIBCXX_USE_CXX11_ABI=1)  # every LibTorch since 2.7 has it
  set(libraries "")
  foreach(name torch torch_cpu c10)
    list(APPEND libraries "${root}/lib/lib${name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
  endforeach()
  set_target_properties(octavo::libtorch PROPERTIES INTERFACE_LINK_LIBRARIES "${libraries};${CMAKE_DL_LIBS}")
  set(options "")
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    # The standard library comes first: CUDA builds of libtorch.so export an old copy of std::filesystem, and a program that uses
    # it crashes. Then libtorch itself, although no symbol of it is used: in a CUDA build it loads the CUDA part.
    list(APPEND options "LINKER:--no-as-needed,-lstdc++,${root}/lib/libtorch.so,--as-needed")
    if(EXISTS "${root}/lib/libtorch_cuda.so")
      # The loader finds the libraries of the CUDA part (cuBLAS, NCCL, the driver) where the program runs.
      list(APPEND options LINKER:--allow-shlib-undefined)
    endif()
  endif()
  set_target_properties(octavo::libtorch PROPERTIES INTERFACE_LINK_OPTIONS "${options}")
endfunction()

function(octavo_libtorch minimum)
  set(root "")
  set(version "")
  set(problem "")
  if(TARGET octavo::libtorch)
    return()
  elseif(TARGET torch)
    add_library(octavo::libtorch INTERFACE IMPORTED GLOBAL)
    set_target_properties(octavo::libtorch PROPERTIES INTERFACE_LINK_LIBRARIES "torch;${CMAKE_DL_LIBS}")
    set(version "${Torch_VERSION}")
  else()
    set(given "${OCTAVO_LIBTORCH}")
    if(NOT given)
      set(given "$ENV{OCTAVO_LIBTORCH}")
    endif()
    set(places "${Torch_DIR}" ${CMAKE_PREFIX_PATH} ${ARGN})
    if(given)
      get_filename_component(places "${given}" ABSOLUTE BASE_DIR "${CMAKE_BINARY_DIR}")
    endif()
    foreach(place IN LISTS places)
      if(place AND NOT root)
        octavo_libtorch_root("${place}" root)
      endif()
    endforeach()
    if(root)
      octavo_libtorch_version("${root}" version)
    endif()
    if(NOT root AND given)
      set(problem "OCTAVO_LIBTORCH=${given} holds no LibTorch: expected a folder with lib/libtorch${CMAKE_SHARED_LIBRARY_SUFFIX} and include/torch")
    elseif(NOT root)
      set(problem "no LibTorch was found: run scripts/bootstrap, or name a LibTorch or torch folder with OCTAVO_LIBTORCH")
    elseif(NOT version)
      set(problem "the LibTorch at ${root} has no version in its headers: take another, ${minimum} or newer")
    elseif(version VERSION_LESS minimum)
      set(problem "the LibTorch at ${root} is version ${version}, expected ${minimum} or newer")
    else()
      octavo_libtorch_target("${root}")
    endif()
  endif()
  set(OCTAVO_LIBTORCH_ROOT "${root}" PARENT_SCOPE)
  set(OCTAVO_LIBTORCH_VERSION "${version}" PARENT_SCOPE)
  set(OCTAVO_LIBTORCH_PROBLEM "${problem}" PARENT_SCOPE)
endfunction()
