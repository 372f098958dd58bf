// Links LibTorch and Octavo through octavo::torch. tests/torch and examples/cpp compile the adapter itself,
// which includes torch/torch.h and takes a minute; here it is enough that its header can be found.
#include <ATen/Parallel.h>
#include <octavo/backend.h>

#if !__has_include(<octavo/torch/optim.h>)
#error "octavo::torch does not bring octavo/torch/optim.h"
#endif

int main() { return at::get_num_threads() > 0 && !octavo::version().empty() ? 0 : 1; }
