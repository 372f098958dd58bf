# Makes CUDA objects for each rule of update in OCTAVO_RULES (src/CMakeLists.txt). core/descriptions.cc compares that list with
# the families of core/builtin_registry.h, so a rule that is missing in one of them does not compile.
#
#   OCTAVO_EXTRA_LISTS   a header with more families and formats: it defines octavo::ExtraFamilies and
#                        octavo::ExtraFormats, and includes its formula headers from its own folder
#   OCTAVO_CUDA_RULES    the rules that get CUDA kernels (all); a machine without a GPU checks the sources with fewer of them
#   OCTAVO_EXTRA_RULES   the rules of these families in the same order, for example Triad

set(OCTAVO_EXTRA_RULES "" CACHE STRING "The rules of update of the families in OCTAVO_EXTRA_LISTS")
set(OCTAVO_EXTRA_LISTS "" CACHE FILEPATH "A header with algorithms and state formats beyond src/core/builtin_registry.h")
if(OCTAVO_EXTRA_LISTS AND NOT EXISTS "${OCTAVO_EXTRA_LISTS}")
  message(FATAL_ERROR "OCTAVO_EXTRA_LISTS: got '${OCTAVO_EXTRA_LISTS}', expected the path of a header")
endif()

set(OCTAVO_CUDA_RULES all CACHE STRING "The rules of update that get CUDA kernels, for example Adam;Lamb, or all")

# Returns the rules of the library in the order of the registry.
function(octavo_all_rules out)
  set(${out} ${OCTAVO_RULES} ${OCTAVO_EXTRA_RULES} PARENT_SCOPE)
endfunction()

# Adds an object library of the kernels that do not depend on a rule. `out` is set to the target.
function(octavo_kernel_library suffix out)
  set(target "octavo_kernels${suffix}")
  add_library(${target} OBJECT ${OCTAVO_CUDA_KERNELS})
  octavo_object_options(${target})
  set(${out} ${target} PARENT_SCOPE)
endfunction()

function(octavo_rule_target rule suffix out)
  string(TOLOWER "octavo_step_${rule}${suffix}" target)
  set(${out} ${target} PARENT_SCOPE)
endfunction()

# Adds an object library of a rule's kernels, from one source for all rules: so a compiler cache finds its objects for another
# build folder, which generated sources would prevent. `out` is set to the target.
function(octavo_rule_library rule suffix out)
  octavo_rule_target(${rule} "${suffix}" target)
  add_library(${target} OBJECT cuda/step/rule.cu)
  octavo_object_options(${target})
  target_compile_definitions(${target} PRIVATE OCTAVO_RULE=${rule})
  set(${out} ${target} PARENT_SCOPE)
endfunction()

# Adds the objects of the rules in OCTAVO_CUDA_RULES; those of other rules have no kernels and report that. With
# OCTAVO_CUDA_PTX_RULES they end as PTX with little optimization, which takes a third of the time.
function(octavo_rule_objects out)
  octavo_all_rules(rules)
  set(objects "")
  foreach(rule IN LISTS rules)
    if(NOT OCTAVO_CUDA_RULES STREQUAL "all" AND NOT rule IN_LIST OCTAVO_CUDA_RULES)
      octavo_rule_target(${rule} "_missing" target)
      add_library(${target} OBJECT cuda/step/missing_rule.cc)
      octavo_object_options(${target})
      octavo_cuda_headers(${target})
      target_compile_definitions(${target} PRIVATE OCTAVO_RULE=${rule})
      list(APPEND objects $<TARGET_OBJECTS:${target}>)
      continue()
    endif()
    octavo_rule_library(${rule} "" target)
    if(OCTAVO_CUDA_PTX_RULES)
      octavo_ptx_alone(${target})
    endif()
    list(APPEND objects $<TARGET_OBJECTS:${target}>)
  endforeach()
  set(${out} "${objects}" PARENT_SCOPE)
endfunction()

# Compiles a target's kernels to PTX with little optimization: this shows that they compile.
function(octavo_ptx_alone target)
  list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^([0-9]+[a-z]?).*$" "\\1-virtual" OUTPUT_VARIABLE ptx)
  set_property(TARGET ${target} PROPERTY CUDA_ARCHITECTURES ${ptx})
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Ofc=max>)
  endif()
endfunction()
