# octavo_add_benchmark(<name> <source>...): a Google Benchmark binary in <build>/benchmarks. Like a test it can include the
# library's internals. Benchmarks are built with everything else and are never run by ctest: no timing is asserted.

function(octavo_add_benchmark name)
  octavo_find_benchmark()
  add_executable(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmarks)
  target_link_libraries(${name} PRIVATE octavo_internal_flags octavo_internal benchmark::benchmark_main)
endfunction()
