# octavo_require_cuda(<nvcc>): an error if this nvcc is older than CUDA 12.0. It runs before CMake's own compiler test, because an
# old nvcc already fails there with a message that names the host compiler and not the toolkit. tests/cuda/old_nvcc.cmake calls it
# with an nvcc that reports 11.8.
function(octavo_require_cuda nvcc)
  if(NOT nvcc)
    return()
  endif()
  set(oldest 12.0)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE failed)
  if(failed OR NOT text MATCHES "release ([0-9]+\\.[0-9]+)")
    return()  # this is not nvcc, or it does not start: CMake's compiler test reports that
  endif()
  set(version ${CMAKE_MATCH_1})
  if(version VERSION_LESS oldest)
    message(FATAL_ERROR
      "octavo: ${nvcc} is from CUDA ${version}, and the CUDA backend needs CUDA ${oldest} or later, because its "
      "sources are C++20. Name a newer nvcc with -DCMAKE_CUDA_COMPILER=/usr/local/cuda-12.9/bin/nvcc (or the "
      "environment variable CUDACXX), or build for the CPU only with -DOCTAVO_CUDA=OFF (make OCTAVO_CUDA=OFF)")
  endif()
endfunction()

# octavo_find_nvcc(<variable>): the nvcc that CMake will use; empty if there is none.
function(octavo_find_nvcc variable)
  if(CMAKE_CUDA_COMPILER)
    set(nvcc ${CMAKE_CUDA_COMPILER})
  elseif(NOT "$ENV{CUDACXX}" STREQUAL "")
    set(nvcc $ENV{CUDACXX})
  else()
    find_program(nvcc nvcc HINTS ENV CUDA_PATH PATH_SUFFIXES bin NO_CACHE)
  endif()
  if(NOT nvcc)
    set(nvcc "")
  endif()
  set(${variable} "${nvcc}" PARENT_SCOPE)
endfunction()
