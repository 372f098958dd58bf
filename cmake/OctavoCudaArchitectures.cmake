# octavo_release_architectures(<variable> <CUDA version>): the architectures of CMAKE_CUDA_ARCHITECTURES=release. They are machine
# code for every architecture that the compiler supports, and PTX for later ones. The driver compiles the newest PTX that is not
# newer than the device. Kernels use the shared memory of the architecture they are compiled for (src/cuda/runtime/arch.h), so a
# device of 12.0 must not get PTX of 9.0 or 10.0, because it has less than half of their shared memory.
# tests/cuda/architectures_test.cc checks every device.
function(octavo_release_architectures variable version)
  set(list 75-real 80-real 86-real 89-real 90-real)
  if(version VERSION_LESS 13)
    list(PREPEND list 70-real)
  endif()
  if(version VERSION_LESS 12.8)
    list(APPEND list 89-virtual)  # all of Blackwell
  elseif(version VERSION_LESS 13)
    list(APPEND list 100-real 100-virtual 120-real 120-virtual)  # 11.0 uses the PTX of 10.0
  else()
    list(APPEND list 100-real 110-real 120-real 120-virtual)
  endif()
  set(${variable} ${list} PARENT_SCOPE)
endfunction()
