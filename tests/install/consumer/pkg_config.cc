// Compiled with the flags that pkg-config gives.
#include <octavo/octavo.h>

int main() { return octavo_version_string()[0] == '\0'; }
