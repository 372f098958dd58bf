# Install rules: the library, its headers, the CMake package (find_package(octavo CONFIG) defines octavo::octavo) and a pkg-config
# file; and, as a component for the wheel only, the library of the Python package. Everything is relocatable: no path of this
# machine is in an installed file, except the CUDA toolkit's in the pkg-config file of a static library.

include(CMakePackageConfigHelpers)
get_target_property(octavo_type octavo TYPE)
set(octavo_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/octavo)

install(TARGETS octavo EXPORT octavo-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
list(TRANSFORM OCTAVO_PUBLIC_INCLUDE APPEND /octavo OUTPUT_VARIABLE octavo_header_folders)
install(DIRECTORY ${octavo_header_folders} ${PROJECT_SOURCE_DIR}/adapters/torch/include/octavo
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(EXPORT octavo-targets NAMESPACE octavo:: DESTINATION ${octavo_package_dir})

set(OCTAVO_PACKAGE_NEEDS_CUDA OFF)
set(octavo_pc_cuda "")
if(OCTAVO_WITH_CUDA AND octavo_type STREQUAL "STATIC_LIBRARY")
  set(OCTAVO_PACKAGE_NEEDS_CUDA ON)
  set(octavo_pc_cuda " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/octavo-config.cmake.in
  ${PROJECT_BINARY_DIR}/octavo-config.cmake INSTALL_DESTINATION ${octavo_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/octavo-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/octavo-config.cmake ${PROJECT_BINARY_DIR}/octavo-config-version.cmake
  ${PROJECT_SOURCE_DIR}/cmake/OctavoLibTorch.cmake
  DESTINATION ${octavo_package_dir})

file(RELATIVE_PATH octavo_pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/cmake/octavo.pc.in ${PROJECT_BINARY_DIR}/octavo.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/octavo.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(OCTAVO_BUILD_APPS)
  file(RELATIVE_PATH octavo_bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  # The library is in ../lib in the Python package, whatever its folder is called elsewhere.
  set_target_properties(octavo_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${octavo_bin_to_lib};$ORIGIN/../lib")
  install(TARGETS octavo_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TARGET octavo_trainer)  # finds LibTorch where it was at build time; OCTAVO_LIBTORCH overrides it
    set_target_properties(octavo_trainer PROPERTIES INSTALL_RPATH "$ORIGIN/${octavo_bin_to_lib};${OCTAVO_LIBTORCH_ROOT}/lib")
    install(TARGETS octavo_trainer RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endif()

# The component that pyproject.toml installs and a plain `cmake --install` does not: the library and the command. The library is
# one file, because a wheel cannot contain symbolic links, and is named as the command needs it.
if(octavo_type STREQUAL "SHARED_LIBRARY")
  install(FILES $<TARGET_FILE:octavo> DESTINATION octavo/lib RENAME $<TARGET_SONAME_FILE_NAME:octavo>
    COMPONENT python EXCLUDE_FROM_ALL)
  if(OCTAVO_BUILD_APPS)
    install(TARGETS octavo_cli RUNTIME DESTINATION octavo/bin COMPONENT python EXCLUDE_FROM_ALL)
  endif()
elseif(SKBUILD)
  message(FATAL_ERROR "octavo: BUILD_SHARED_LIBS is OFF, but the Python package loads a shared library: leave it ON")
endif()
