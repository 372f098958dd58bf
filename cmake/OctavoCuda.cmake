# Finds the CUDA compiler and sets the architectures. Sets OCTAVO_WITH_CUDA.
#
#   OCTAVO_CUDA=AUTO|ON|OFF       AUTO looks for nvcc
#   CMAKE_CUDA_ARCHITECTURES      the default is the GPU of this machine, or 90; `release` is every supported one and
#                                 PTX for later ones

include(OctavoCudaArchitectures)
include(OctavoCudaVersion)

set(OCTAVO_WITH_CUDA OFF)
if(OCTAVO_CUDA STREQUAL "AUTO")
  if(CMAKE_CROSSCOMPILING OR OCTAVO_SANITIZE)  # sanitizers do not instrument device code
    set(found OFF)
  else()
    octavo_find_nvcc(nvcc)
    octavo_require_cuda("${nvcc}")
    include(CheckLanguage)
    check_language(CUDA)
    set(found ${CMAKE_CUDA_COMPILER})
  endif()
else()
  set(found ${OCTAVO_CUDA})
  if(found)
    octavo_find_nvcc(nvcc)
    octavo_require_cuda("${nvcc}")
  endif()
endif()

if(found)
  # CMake before 3.24 does not support "native", and without a GPU it is an error.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE present RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT failed AND present MATCHES "^[0-9.\n]+$")
      string(REPLACE "." "" present "${present}")
      string(REPLACE "\n" ";" present "${present}")
      list(REMOVE_DUPLICATES present)
      set(CMAKE_CUDA_ARCHITECTURES ${present})
    else()
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
  endif()
  set(wanted ${CMAKE_CUDA_ARCHITECTURES})
  if(wanted STREQUAL "release")
    set(CMAKE_CUDA_ARCHITECTURES 80)  # for the compiler check; the list needs its version
  endif()
  enable_language(CUDA)
  if(wanted STREQUAL "release")
    octavo_release_architectures(CMAKE_CUDA_ARCHITECTURES ${CMAKE_CUDA_COMPILER_VERSION})
  endif()
  # Machine code for all GPUs is large. Compression reduces it to a fifth, and the driver unpacks what its GPU needs. The best
  # method is used with CUDA 13 alone, because an older driver may not know it.
  set(OCTAVO_CUDA_COMPRESSION "")
  if(wanted STREQUAL "release")
    set(OCTAVO_CUDA_COMPRESSION -Xfatbin=-compress-all)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      set(OCTAVO_CUDA_COMPRESSION --compress-mode=size)
    endif()
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(OCTAVO_WITH_CUDA ON)
  message(STATUS "octavo: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
elseif(OCTAVO_CUDA STREQUAL "AUTO")
  message(STATUS "octavo: no CUDA compiler was found, or none was searched for; building only for the CPU")
endif()
