/* Passes a program's constructors to glibc. The start code of glibc 2.34 and later passes none, because glibc
 * finds them, but an older glibc runs only those that it is given. A program is linked with
 * --wrap=__libc_start_main, so its start code calls the function below (cmake/OctavoGlibc.cmake).
 * SPDX-License-Identifier: MIT */
typedef int Main(int, char**, char**);
typedef void Constructor(int, char**, char**);
extern Constructor* __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor* __init_array_end[] __attribute__((visibility("hidden")));
int __real___libc_start_main(Main*, int, char**, Main*, void (*)(void), void (*)(void), void*);
int __wrap___libc_start_main(Main*, int, char**, Main*, void (*)(void), void (*)(void), void*);

static int run_constructors(int argc, char** argv, char** environment) {
  for (Constructor** each = __init_array_start; each != __init_array_end; ++each)
    (*each)(argc, argv, environment);
  return 0;
}

int __wrap___libc_start_main(Main* main, int argc, char** argv, Main* init, void (*fini)(void),
                             void (*unload)(void), void* stack) {
  return __real___libc_start_main(main, argc, argv, init != 0 ? init : run_constructors, fini, unload, stack);
}
