# A CUDA source for each rule of update, so that adding an algorithm is one formula file and one line in the list.
#
#   OCTAVO_EXTRA_LISTS   the full path of a header with more families and formats: it defines octavo::ExtraFamilies and
#                        octavo::ExtraFormats, and includes its formula headers from its own folder

set(OCTAVO_EXTRA_LISTS "" CACHE FILEPATH "A header with algorithms and state formats beyond src/core/lists.h")

# The rules of the families that a list includes: `using Rules = TypeList<A, B>;` in its formula headers.
function(octavo_rules_of list folder pattern out)
  set(found "")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${list}")
  file(STRINGS "${list}" includes REGEX "^#include \"${pattern}\"")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" header "${line}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${folder}/${header}")
    file(READ "${folder}/${header}" text)
    string(REGEX MATCHALL "using Rules = TypeList<[^>]*>" lists "${text}")
    foreach(one IN LISTS lists)
      string(REGEX REPLACE "using Rules = TypeList<([^>]*)>" "\\1" names "${one}")
      string(REGEX MATCHALL "[A-Za-z0-9_]+" names "${names}")
      list(APPEND found ${names})
    endforeach()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

function(octavo_rule_sources out)
  octavo_rules_of("${CMAKE_CURRENT_SOURCE_DIR}/core/lists.h" "${CMAKE_CURRENT_SOURCE_DIR}" "formula/[^\"]+" rules)
  if(OCTAVO_EXTRA_LISTS)
    get_filename_component(folder "${OCTAVO_EXTRA_LISTS}" DIRECTORY)
    octavo_rules_of("${OCTAVO_EXTRA_LISTS}" "${folder}" "[^\"]+" more)
    list(APPEND rules ${more})
  endif()
  set(sources "")
  foreach(rule IN LISTS rules)
    string(TOLOWER "${rule}" name)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/rules/step_${name}.cu")
    configure_file(cuda/step_rule.cu.in "${source}" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  set(${out} "${sources}" PARENT_SCOPE)
endfunction()
