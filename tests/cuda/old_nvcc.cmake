# cmake -DVERSION=<version> -DMODULES=<cmake/> -DFOLDER=<folder> -P old_nvcc.cmake: tests the message of a
# build with an nvcc of that version. The nvcc is a script that prints a version.
set(nvcc "${FOLDER}/nvcc-${VERSION}")
file(WRITE "${nvcc}" "#!/bin/sh\necho 'Cuda compilation tools, release ${VERSION}, V${VERSION}.89'\n")
file(CHMOD "${nvcc}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
include("${MODULES}/OctavoCudaVersion.cmake")
set(ENV{CUDACXX} "${nvcc}")
octavo_find_nvcc(found)
octavo_require_cuda("${found}")
message(STATUS "accepted ${VERSION}")
