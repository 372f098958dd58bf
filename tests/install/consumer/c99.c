/* octavo.h is C99: this file is compiled with -std=c99 -Wpedantic -Werror. */
#include <octavo/octavo.h>

const char* version_from_c(void);

const char* version_from_c(void) { return octavo_version_string(); }
