// SPDX-License-Identifier: MIT
#include "train/nn/recompute_rows.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/fused.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace octavo_train {
namespace {

using torch::autograd::variable_list;

struct Rows : torch::CustomClassHolder {
  Rows(RowSegment segment, std::size_t count, std::int64_t most)
      : run(std::move(segment)), inputs(count), at_once(most) {}

  // Calls part(first, rows, the segment's inputs) for each run of rows.
  template <class Part>
  void each(const variable_list& all, const Part& part) const {
    const std::int64_t count = all[0].size(0);
    for (std::int64_t first = 0; first < count; first += at_once) {
      const std::int64_t rows = std::min(at_once, count - first);
      variable_list some;
      for (std::size_t i = 0; i < inputs; ++i) some.push_back(all[i].narrow(0, first, rows));
      part(first, rows, some);
    }
  }

  RowSegment run;
  std::size_t inputs;  // number of inputs among the function's tensors; the others are parameters
  std::int64_t at_once;
};

variable_list parameters_of(const Rows& rows, const variable_list& all) {
  return {all.begin() + static_cast<std::ptrdiff_t>(rows.inputs), all.end()};
}

struct RowsFunction : torch::autograd::Function<RowsFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const c10::intrusive_ptr<Rows>& rows, at::TensorList list) {
    const variable_list all = list.vec();
    context->save_for_backward(all);
    context->saved_data["rows"] = c10::IValue::make_capsule(rows);
    const torch::NoGradGuard no_grad;
    const NoAutocast no_autocast;
    torch::Tensor out;
    rows->each(all, [&](std::int64_t first, std::int64_t count, const variable_list& inputs) {
      const torch::Tensor part = rows->run(inputs, parameters_of(*rows, all));
      if (count == all[0].size(0)) {
        out = part;
        return;
      }
      if (!out.defined()) {
        std::vector<std::int64_t> sizes = part.sizes().vec();
        sizes[0] = all[0].size(0);
        out = torch::empty(sizes, part.options());
      }
      out.narrow(0, first, count).copy_(part);
    });
    return out;
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& grads) {
    check_first_gradient("recompute_rows");
    const auto rows = c10::static_intrusive_pointer_cast<Rows>(context->saved_data["rows"].toCapsule());
    const variable_list all = context->get_saved_variables();
    variable_list parameters, wanted;
    for (const torch::Tensor& saved : parameters_of(*rows, all)) {
      parameters.push_back(saved.detach().requires_grad_(saved.requires_grad()));
      if (saved.requires_grad()) wanted.push_back(parameters.back());
    }
    variable_list sums(wanted.size());
    rows->each(all, [&](std::int64_t first, std::int64_t count, const variable_list& inputs) {
      torch::Tensor part;
      {
        const torch::AutoGradMode with_grad(true);
        const NoAutocast no_autocast;
        part = rows->run(inputs, parameters);
      }
      const variable_list found = torch::autograd::grad({part}, wanted, {grads[0].narrow(0, first, count)});
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (sums[i].defined())
          sums[i].add_(found[i]);
        else
          sums[i] = to_accumulation_type(found[i]);
      }
    });
    variable_list out(1 + all.size());  // no gradients for `rows`, which is not a tensor, and the inputs
    std::size_t next = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].requires_grad())
        out[1 + rows->inputs + i] = sums[next++].to(parameters[i].scalar_type());
    }
    return out;
  }
};

}  // namespace

torch::Tensor recompute_rows(RowSegment segment, const std::vector<torch::Tensor>& inputs,
                             const std::vector<torch::Tensor>& parameters, std::int64_t rows_at_once) {
  TORCH_CHECK(rows_at_once >= 1, "recompute_rows: rows_at_once is ", rows_at_once, ", expected at least 1");
  TORCH_CHECK(!inputs.empty(), "recompute_rows: there are no inputs");
  for (const torch::Tensor& input : inputs) {
    TORCH_CHECK(input.dim() >= 1 && input.size(0) == inputs[0].size(0), "recompute_rows: an input is ",
                input.sizes(), ", expected ", inputs[0].size(0), " rows as the first one has");
    TORCH_CHECK(!input.requires_grad(), "recompute_rows: an input needs a gradient; take recompute()");
  }
  variable_list all = inputs;
  all.insert(all.end(), parameters.begin(), parameters.end());
  auto rows = c10::make_intrusive<Rows>(std::move(segment), inputs.size(), rows_at_once);
  return RowsFunction::apply(std::move(rows), at::TensorList(all));
}

}  // namespace octavo_train
