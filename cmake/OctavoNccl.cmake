# octavo_nccl_headers(<libtorch folder> <out>): the include folders with which c10d's ProcessGroupNCCL.hpp compiles, or nothing.
# The packages that torch's CUDA wheels depend on (nvidia-nccl-*, nvidia-cuda-runtime-*, nvidia-cublas-* ...) are in folders next
# to torch; a CUDA toolkit and a system's nccl.h also work.

function(octavo_nccl_headers root out)
  file(GLOB folders "${root}/../nvidia/*/include")
  find_package(CUDAToolkit QUIET)
  list(APPEND folders ${CUDAToolkit_INCLUDE_DIRS})
  find_path(OCTAVO_NCCL_INCLUDE nccl.h HINTS ${folders} NO_CACHE)
  set(${out} "" PARENT_SCOPE)
  if(NOT OCTAVO_NCCL_INCLUDE)
    return()
  endif()
  list(PREPEND folders "${OCTAVO_NCCL_INCLUDE}")
  list(REMOVE_DUPLICATES folders)
  # It takes a minute to compile, once: the result is in the cache.
  set(source "${PROJECT_BINARY_DIR}/octavo_nccl_header.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#define USE_C10D_NCCL\n#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>\n")
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  try_compile(OCTAVO_NCCL_HEADER_COMPILES "${PROJECT_BINARY_DIR}/octavo_nccl" SOURCES "${source}"
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES:STRING=${folders};${root}/include;${root}/include/torch/csrc/api/include"
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
  if(OCTAVO_NCCL_HEADER_COMPILES)
    set(${out} "${folders}" PARENT_SCOPE)
  endif()
endfunction()
