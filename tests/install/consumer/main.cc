// Prints the version of the installed Octavo as C++ and as C see it.
#include <cstdio>

#include <octavo/octavo.h>

extern "C" const char* version_from_c(void);

int main() { std::printf("octavo %s %s\n", octavo_version_string(), version_from_c()); }
