# The target octavo::torch, the header-only LibTorch adapter, where there is a LibTorch: that of Torch_DIR or
# CMAKE_PREFIX_PATH, else the torch wheel in .venv. OCTAVO_TORCH=ON makes its absence an error. The target torch brings
# LibTorch's include folders, its C++ ABI flags and the library; a CUDA build of it needs nothing else here.

set(OCTAVO_TORCH_MINIMUM 2.9)
set(octavo_torch_default OFF)  # an embedding project asks for it
if(PROJECT_IS_TOP_LEVEL AND NOT SKBUILD)
  set(octavo_torch_default AUTO)
endif()
set(OCTAVO_TORCH ${octavo_torch_default} CACHE STRING "Build what uses LibTorch: ON, OFF or AUTO")
set_property(CACHE OCTAVO_TORCH PROPERTY STRINGS AUTO ON OFF)

# Sets `out` to the folder of TorchConfig.cmake, or to nothing.
function(octavo_torch_dir out)
  set(places ${Torch_DIR})
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND places ${prefix} ${prefix}/Torch ${prefix}/share/cmake/Torch)
  endforeach()
  set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  if(EXISTS ${python})
    # Finding the package is quick; importing it would take seconds.
    execute_process(
      COMMAND ${python} -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND places ${package}/share/cmake/Torch)
  endif()
  foreach(place IN LISTS places)
    if(EXISTS ${place}/TorchConfig.cmake)
      set(${out} ${place} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

# A function, so that the variables that TorchConfig.cmake sets, flags among them, end here; targets do not.
function(octavo_find_torch)
  if(TARGET torch)
    return()
  endif()
  octavo_torch_dir(dir)
  if(NOT dir)
    set(problem "no LibTorch is found: run scripts/bootstrap, or give -DCMAKE_PREFIX_PATH=<where it is>")
  else()
    cmake_path(SET root NORMALIZE ${dir}/../../..)
    find_package(CUDAToolkit QUIET)
    if(EXISTS ${root}/lib/libtorch_cuda.so AND NOT CUDAToolkit_FOUND)
      # Its CMake files would stop this build.
      set(problem "${root} is a CUDA build, which needs the CUDA toolkit, and none is found: install one, or take a CPU build")
    else()
      set(CMAKE_MESSAGE_LOG_LEVEL ERROR)  # wheels warn of a static library that they do not hold
      find_package(Torch ${OCTAVO_TORCH_MINIMUM} QUIET CONFIG NO_DEFAULT_PATH PATHS ${dir})
      unset(CMAKE_MESSAGE_LOG_LEVEL)
      if(NOT Torch_FOUND)
        set(problem "${dir} has a LibTorch that is older than ${OCTAVO_TORCH_MINIMUM} or broken: take a newer one")
      endif()
    endif()
  endif()
  if(NOT problem)
    message(STATUS "octavo: LibTorch ${Torch_VERSION} at ${root}")
  elseif(OCTAVO_TORCH STREQUAL "AUTO")
    message(STATUS "octavo: no LibTorch adapter (${problem})")
  else()
    message(FATAL_ERROR "octavo: OCTAVO_TORCH is ${OCTAVO_TORCH}, but ${problem}")
  endif()
endfunction()

# torch/torch.h takes a minute to compile: once per target that uses it.
function(octavo_precompile_torch target)
  target_precompile_headers(${target} PRIVATE <torch/torch.h>)
  if(OCTAVO_CCACHE)
    # Else ccache does not trust a precompiled header.
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${OCTAVO_CCACHE}")
  endif()
endfunction()

set(OCTAVO_WITH_TORCH OFF)
if(OCTAVO_TORCH STREQUAL "AUTO" AND (OCTAVO_SANITIZE OR CMAKE_CROSSCOMPILING))
  message(STATUS "octavo: no LibTorch adapter in an instrumented or cross-compiled build (OCTAVO_TORCH=ON asks for it)")
elseif(OCTAVO_TORCH)
  octavo_find_torch()
  if(TARGET torch)
    set(OCTAVO_WITH_TORCH ON)
    add_library(octavo_torch INTERFACE)
    add_library(octavo::torch ALIAS octavo_torch)
    target_include_directories(octavo_torch INTERFACE ${PROJECT_SOURCE_DIR}/adapters/torch/include)
    target_link_libraries(octavo_torch INTERFACE octavo::octavo torch ${CMAKE_DL_LIBS})
    if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
      # libtorch itself, although no symbol of it is used: in a CUDA build it is what loads the CUDA part.
      target_link_options(octavo_torch INTERFACE LINKER:--no-as-needed,$<TARGET_FILE:torch>,--as-needed)
    endif()
  endif()
endif()
