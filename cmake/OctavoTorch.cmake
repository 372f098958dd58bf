# Targets over LibTorch: octavo::torch (the header-only adapter), and one precompiled header for all of them. OctavoLibTorch.cmake
# finds LibTorch; in addition to its own places it searches the torch wheel in .venv and that of an active virtual environment.
# OCTAVO_TORCH=ON makes its absence an error. OCTAVO_NO_TORCH_REASON is the reason for a missing one.

include(OctavoLibTorch)

set(OCTAVO_TORCH_MINIMUM 2.9)
set(octavo_torch_default OFF)  # an embedding project has to request it
if(PROJECT_IS_TOP_LEVEL AND NOT SKBUILD)
  set(octavo_torch_default AUTO)
endif()
set(OCTAVO_TORCH ${octavo_torch_default} CACHE STRING "Build what uses LibTorch: ON, OFF or AUTO")
set_property(CACHE OCTAVO_TORCH PROPERTY STRINGS AUTO ON OFF)

# Appends the folders of these Pythons' torch wheels. The package is searched for, not imported: an import takes seconds.
function(octavo_torch_wheels out)
  set(found "")
  foreach(python "${PROJECT_SOURCE_DIR}/.venv/bin/python" "$ENV{VIRTUAL_ENV}/bin/python")
    if(EXISTS "${python}")
      execute_process(
        COMMAND "${python}" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      list(APPEND found "${package}")
    endif()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# octavo_precompile(<target> FROM <name> HEADERS <header>... LIBRARIES <library>...): compiles headers once, in a target of that
# name, for all targets that use it. The last call for a target applies.
function(octavo_precompile target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FROM" "HEADERS;LIBRARIES")
  if(NOT TARGET ${arg_FROM})
    set(source "${PROJECT_BINARY_DIR}/${arg_FROM}.cc")
    file(CONFIGURE OUTPUT "${source}" CONTENT "// A precompiled header belongs to a target, and a target has a source.\n")
    add_library(${arg_FROM} OBJECT "${source}")
    target_link_libraries(${arg_FROM} PRIVATE octavo_internal_flags ${arg_LIBRARIES})
    target_precompile_headers(${arg_FROM} PRIVATE ${arg_HEADERS})
    octavo_use_precompiled(${arg_FROM})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${arg_FROM})
  octavo_use_precompiled(${target})
endfunction()

# For code without LibTorch and without hot loops. CLI11 is not precompiled: each source with the header would compile functions
# of CLI11, used or not, for two seconds.
function(octavo_precompile_json target)
  octavo_precompile(${target} FROM octavo_json_pch
    HEADERS <algorithm> <functional> <map> <optional> <span> <string> <vector> <fmt/format.h> <nlohmann/json.hpp>
    LIBRARIES octavo_fmt nlohmann_json::nlohmann_json)
endfunction()

# torch/torch.h takes a minute to compile.
function(octavo_precompile_torch target)
  octavo_precompile(${target} FROM octavo_torch_pch HEADERS <torch/torch.h> LIBRARIES octavo::torch)
endfunction()

# The header and all its users have the same code generation, because GCC 13 refuses a header of another level. If a compiler
# still refuses it, the header is compiled again, which is slow but not an error. ccache trusts precompiled headers only with this
# setting.
function(octavo_use_precompiled target)
  octavo_no_hot_loops(${target})
  # The compiler's garbage collector walks the memory of the header, so it runs less often.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-error=invalid-pch;SHELL:--param ggc-min-expand=400>")
  if(OCTAVO_CCACHE)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${OCTAVO_CCACHE}")
  endif()
endfunction()

set(OCTAVO_WITH_TORCH OFF)
set(OCTAVO_NO_TORCH_REASON "")
if(NOT OCTAVO_TORCH)
  set(OCTAVO_NO_TORCH_REASON "OCTAVO_TORCH is OFF")
elseif(OCTAVO_TORCH STREQUAL "AUTO" AND (OCTAVO_SANITIZE OR CMAKE_CROSSCOMPILING))
  set(OCTAVO_NO_TORCH_REASON "an instrumented or cross-compiled build has none unless OCTAVO_TORCH is ON")
else()
  octavo_torch_wheels(octavo_torch_places)
  octavo_libtorch(${OCTAVO_TORCH_MINIMUM} ${octavo_torch_places})
  set(OCTAVO_NO_TORCH_REASON "${OCTAVO_LIBTORCH_PROBLEM}")
endif()

if(TARGET octavo::libtorch)
  set(OCTAVO_WITH_TORCH ON)
  message(STATUS "octavo: LibTorch ${OCTAVO_LIBTORCH_VERSION} at ${OCTAVO_LIBTORCH_ROOT}")
  add_library(octavo_torch INTERFACE)
  add_library(octavo::torch ALIAS octavo_torch)
  target_include_directories(octavo_torch INTERFACE ${PROJECT_SOURCE_DIR}/adapters/torch/include)
  target_link_libraries(octavo_torch INTERFACE octavo::octavo octavo::libtorch)
elseif(OCTAVO_TORCH STREQUAL "AUTO" AND NOT OCTAVO_LIBTORCH AND NOT DEFINED ENV{OCTAVO_LIBTORCH})
  message(STATUS "octavo: no LibTorch adapter and no trainer (${OCTAVO_NO_TORCH_REASON})")
elseif(OCTAVO_TORCH)
  message(FATAL_ERROR "octavo: the LibTorch adapter and the trainer cannot be built: ${OCTAVO_NO_TORCH_REASON}. "
                      "(OCTAVO_TORCH is ${OCTAVO_TORCH}; -DOCTAVO_TORCH=OFF leaves both out.)")
endif()
