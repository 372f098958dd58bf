# octavo_release_architectures(<variable> <CUDA version>): what CMAKE_CUDA_ARCHITECTURES=release stands for. Machine code
# for every architecture that the compiler knows, and PTX for later ones, which the driver compiles from the newest that
# is not newer than the device. Kernels take the shared memory of the architecture they are compiled for
# (src/cuda/runtime/arch.h), so PTX of 9.0 or 10.0 must not be what a device of 12.0 finds, which has less than half of it.
# tests/cuda/architectures_test.cc goes through every device.
function(octavo_release_architectures variable version)
  set(list 75-real 80-real 86-real 89-real 90-real)
  if(version VERSION_LESS 13)
    list(PREPEND list 70-real)
  endif()
  if(version VERSION_LESS 12.8)
    list(APPEND list 89-virtual)  # Blackwell, all of it
  elseif(version VERSION_LESS 13)
    list(APPEND list 100-real 100-virtual 120-real 120-virtual)  # 11.0 takes the PTX of 10.0
  else()
    list(APPEND list 100-real 110-real 120-real 120-virtual)
  endif()
  set(${variable} ${list} PARENT_SCOPE)
endfunction()
