# Compiles the objects of the library and links it: src/ and the folders of libs/ have object libraries, which liboctavo joins.
#
#   OCTAVO_PUBLIC_INCLUDE   the folders with public headers, octavo/*.h
#   OCTAVO_LIBS_OBJECTS     the objects of libs/

include(OctavoRules)
find_package(Threads REQUIRED)
octavo_find_highway()

set(OCTAVO_PUBLIC_INCLUDE
  ${PROJECT_SOURCE_DIR}/include
  ${PROJECT_SOURCE_DIR}/libs/planner/include
  ${PROJECT_SOURCE_DIR}/libs/transducer/include)
set(OCTAVO_LIBS_OBJECTS $<TARGET_OBJECTS:octavo_planner> $<TARGET_OBJECTS:octavo_transducer>)

# Sets the options of every object of the library.
function(octavo_object_options target)
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    CUDA_VISIBILITY_PRESET hidden)
  target_compile_definitions(${target} PRIVATE OCTAVO_BUILDING)
  if(OCTAVO_EXTRA_LISTS)
    target_compile_definitions(${target} PRIVATE "OCTAVO_EXTRA_LISTS=\"${OCTAVO_EXTRA_LISTS}\"")
  endif()
  target_include_directories(${target} PRIVATE
    ${OCTAVO_PUBLIC_INCLUDE} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/libs)
  target_link_libraries(${target} PRIVATE octavo_internal_flags octavo_highway Threads::Threads)
endfunction()

# Gives a target the headers of the CUDA runtime. Other objects do not get them, so that they are not compiled again if a build
# folder changes between CUDA and the CPU alone.
function(octavo_cuda_headers target)
  if(OCTAVO_WITH_CUDA)
    target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endfunction()

# Sets the options for linking the library from its objects.
function(octavo_library_options target)
  # Before 1.0 a minor version may change the ABI, so the soname carries it.
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  # The static runtime: a binary with CUDA starts on a machine without a driver, and reports that when a GPU is requested.
  if(OCTAVO_WITH_CUDA)
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "SHARED_LIBRARY" AND CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT OCTAVO_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:--no-undefined)  # a symbol of libhwy stops the build here
    # If a toolchain links libstdc++ statically, its symbols must not replace those that LibTorch uses.
    target_link_options(${target} PRIVATE LINKER:--exclude-libs,ALL)
    octavo_link_old_glibc(${target})
  endif()
endfunction()
