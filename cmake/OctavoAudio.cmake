# The trainer's libraries for recordings: libsndfile (files), soxr (sample rates) and SentencePiece (texts). Either all of them
# are used or none.
# Sets OCTAVO_WITH_AUDIO and the targets octavo_sndfile, octavo_soxr and octavo_sentencepiece.
#
#   OCTAVO_AUDIO=AUTO|ON|OFF   AUTO looks for the libraries; ON makes their absence an error
#
# CMAKE_PREFIX_PATH is searched too, so a folder with the unpacked packages is sufficient.

set(octavo_audio_default AUTO)
if(CMAKE_CROSSCOMPILING)  # the libraries of this machine do not run on the target
  set(octavo_audio_default OFF)
endif()
set(OCTAVO_AUDIO ${octavo_audio_default} CACHE STRING "Build what reads recordings: ON, OFF or AUTO")
set_property(CACHE OCTAVO_AUDIO PROPERTY STRINGS AUTO ON OFF)

# octavo_audio_library(<target> <header> <library>...): appends missing files to octavo_audio_missing.
function(octavo_audio_library target header)
  string(TOUPPER ${target} variable)
  find_path(${variable}_INCLUDE_DIR ${header})
  set(found ${${variable}_INCLUDE_DIR})
  mark_as_advanced(${variable}_INCLUDE_DIR)
  set(libraries "")
  foreach(name IN LISTS ARGN)
    find_library(${variable}_${name}_LIBRARY ${name})
    mark_as_advanced(${variable}_${name}_LIBRARY)
    if(NOT ${variable}_${name}_LIBRARY)
      set(found "")
    endif()
    list(APPEND libraries ${${variable}_${name}_LIBRARY})
  endforeach()
  if(NOT found)
    list(GET ARGN 0 name)
    set(octavo_audio_missing ${octavo_audio_missing} ${name} PARENT_SCOPE)
    return()
  endif()
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${${variable}_INCLUDE_DIR})
  target_link_libraries(${target} INTERFACE ${libraries})
  # The libraries need others, which are next to them in a prefix.
  list(GET libraries 0 first)
  get_filename_component(folder ${first} DIRECTORY)
  if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    target_link_options(${target} INTERFACE "LINKER:-rpath-link,${folder}")
  endif()
endfunction()

set(OCTAVO_WITH_AUDIO OFF)
if(OCTAVO_AUDIO)
  set(octavo_audio_missing "")
  octavo_audio_library(octavo_sndfile sndfile.h sndfile)
  octavo_audio_library(octavo_soxr soxr.h soxr)
  octavo_audio_library(octavo_sentencepiece sentencepiece_processor.h sentencepiece sentencepiece_train)
  if(NOT octavo_audio_missing)
    set(OCTAVO_WITH_AUDIO ON)
  else()
    list(JOIN octavo_audio_missing ", " octavo_audio_missing)
    set(octavo_audio_fix "install libsndfile1-dev, libsoxr-dev and libsentencepiece-dev (scripts/bootstrap does)")
    if(OCTAVO_AUDIO STREQUAL "AUTO")
      message(STATUS "octavo: ${octavo_audio_missing} not found; the trainer reads no recordings: ${octavo_audio_fix}")
    else()
      message(FATAL_ERROR "OCTAVO_AUDIO is ON and ${octavo_audio_missing} was not found: ${octavo_audio_fix}, or set OCTAVO_AUDIO=OFF")
    endif()
  endif()
endif()
