// SPDX-License-Identifier: MIT
#include "cpu/affinity.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <string_view>
#include <vector>

namespace octavo::cpu {
namespace {

// Looks up a function of an OpenMP runtime, because this library does not link one.
template <class Fn>
Fn* symbol(void* library, const char* name) {
  return reinterpret_cast<Fn*>(dlsym(library, name));
}

// Adds the CPUs of one OpenMP runtime's places. A runtime that binds no threads has no places.
void add_places(void* library, cpu_set_t& to) {
  const auto places = symbol<int()>(library, "omp_get_num_places");
  const auto count = symbol<int(int)>(library, "omp_get_place_num_procs");
  const auto list = symbol<void(int, int*)>(library, "omp_get_place_proc_ids");
  if (places == nullptr || count == nullptr || list == nullptr) return;
  std::vector<int> ids;
  for (int place = 0; place < places(); ++place) {
    ids.assign(static_cast<std::size_t>(count(place)), -1);
    list(place, ids.data());
    for (const int cpu : ids) {
      if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &to);
    }
  }
}

// The OpenMP runtimes among the loaded libraries: GCC's, LLVM's and Intel's, also under the names that wheels
// use ("libgomp-24e2ab19.so.1.0.0"). The search allocates no memory, because the loader calls it under its
// lock.
struct Runtimes {
  std::array<const char*, 8> paths{};
  std::size_t count = 0;
};
int visit(dl_phdr_info* info, std::size_t /*size*/, void* to) {
  auto& found = *static_cast<Runtimes*>(to);
  const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view runtime : {"libgomp", "libomp", "libiomp5"}) {
    if (name.starts_with(runtime) && found.count < found.paths.size())
      found.paths[found.count++] = info->dlpi_name;
  }
  return 0;
}

cpu_set_t openmp_places() {
  cpu_set_t places;
  CPU_ZERO(&places);
  Runtimes found;
  dl_iterate_phdr(visit, &found);
  for (std::size_t i = 0; i < found.count; ++i) {
    void* library = dlopen(found.paths[i], RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    add_places(library, places);
    dlclose(library);
  }
  return places;
}

}  // namespace

cpu_set_t process_cpus() {
  // A search through the libraries takes time, and its result changes only with the main thread's mask.
  static std::mutex mutex;
  static cpu_set_t asked = {};
  static cpu_set_t answer = {};
  cpu_set_t own;
  CPU_ZERO(&own);
  if (sched_getaffinity(getpid(), sizeof own, &own) != 0) return own;
  // The lock does not block: in a forked child the thread that owned it may not exist.
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (lock && CPU_EQUAL(&own, &asked)) return answer;
  const cpu_set_t places = openmp_places();
  const cpu_set_t cpus = CPU_COUNT(&places) > 0 ? places : own;
  // The queries above may have bound this thread, so the cached result belongs to the mask that the thread
  // has now.
  if (lock && sched_getaffinity(getpid(), sizeof asked, &asked) == 0) answer = cpus;
  return cpus;
}

}  // namespace octavo::cpu
