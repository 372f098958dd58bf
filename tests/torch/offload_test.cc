// Offload of the LibTorch adapter: states in host memory have the bits of states on the parameters' device,
// also with offloaded gradients, with deferred steps, and after save and load.
// SPDX-License-Identifier: MIT
#include "tests/support/delays.h"
#include "tests/torch/support.h"

#include <octavo/backend.h>

#include <sstream>

namespace test {
namespace {

using octavo::torch::AdamW;
using octavo::torch::AnyOptions;
using testing::AllOf;
using testing::HasSubstr;

// Two that leave the device, and one that is too small.
Tensors some_params(torch::ScalarType type = torch::kFloat32) {
  Tensors params = make_params(type);
  torch::manual_seed(8);
  params.push_back(torch::randn({5, 1000}).to(type).requires_grad_());
  return params;
}

void train(octavo::torch::Optimizer& optimizer, const Tensors& params, std::int64_t steps) {
  for (std::int64_t step = 1; step <= steps; ++step) {
    optimizer.zero_grad();
    loss_of(params, step).backward();
    optimizer.step();
    optimizer.wait();
  }
}

AdamWOptions with(const std::string& offload, const std::string& format = "8bit") {
  return AdamWOptions(1e-2).state(format).master("24").clip_grad_norm(0.5).skip_nonfinite(true).offload(
      offload);
}

std::string saved(const octavo::torch::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

// Every state format, with and without gradients in host memory, and deferred.
TEST(TorchOffload, HasTheBitsOfStatesOnTheDevice) {
  for (const std::string& format : formats()) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      const Tensors plain = some_params(type);
      AdamW reference(plain, with("none", format));
      train(reference, plain, 4);
      for (const char* offload : {"host", "stream"}) {
        for (const bool take : {false, true}) {
          for (const bool attach : {false, true}) {
            const Tensors params = some_params(type);
            AdamW optimizer(params, with(offload, format).offload_gradients(take));
            if (attach) optimizer.attach();
            train(optimizer, params, 4);
            const std::string what =
                format + " " + offload + (take ? " taken" : "") + (attach ? " attached" : "");
            EXPECT_TRUE(same_bits(params, plain)) << what;
            EXPECT_TRUE(same_bits(states(optimizer), states(reference))) << what;
            EXPECT_TRUE(same_bits(optimizer.grad_norm(), reference.grad_norm())) << what;
          }
        }
      }
    }
  }
}

TEST(TorchOffload, OtherAlgorithmsAndReleasedGradients) {
  for (const char* name : {"lamb", "sgd", "ademamix"}) {
    for (const char* offload : {"host", "stream"}) {
      const Tensors params = some_params(), plain = copies(params);
      const auto options = AnyOptions(name).lr(1e-2).state("8bit");
      const auto optimizer = octavo::torch::make_optimizer(params, AnyOptions(options).offload(offload));
      const auto reference = octavo::torch::make_optimizer(plain, options);
      train(*optimizer, params, 3);
      train(*reference, plain, 3);
      EXPECT_TRUE(same_bits(params, plain)) << name << " " << offload;
    }
  }
  for (const char* offload : {"host", "stream"}) {
    for (const bool attach : {false, true}) {
      const Tensors params = some_params(), plain = copies(params);
      AdamW optimizer(params, with(offload).gradient_release(true)),
          reference(plain, with("none").gradient_release(true));
      if (attach) optimizer.attach();
      train(optimizer, params, 4);
      train(reference, plain, 4);
      EXPECT_FALSE(params[0].grad().defined());
      EXPECT_TRUE(same_bits(params, plain)) << offload;
      EXPECT_TRUE(same_bits(states(optimizer), states(reference))) << offload;
    }
  }
}

// Offloaded gradients are removed from the parameters, and no gradient of the previous step is used.
TEST(TorchOffload, TakesGradientsAsTheyCome) {
  const Tensors params = some_params(), plain = copies(params);
  AdamW optimizer(params, with("host").offload_gradients(true)), reference(plain, with("none"));
  train(optimizer, params, 1);
  train(reference, plain, 1);
  loss_of(params, 7).backward();
  EXPECT_FALSE(params[0].grad().defined());
  EXPECT_TRUE(params[1].grad().defined()) << "its state is on the device";
  optimizer.zero_grad();
  EXPECT_FALSE(params[1].grad().defined());
  reference.zero_grad();
  params[0].sum().backward(), plain[0].sum().backward();
  optimizer.step(), reference.step();
  EXPECT_TRUE(same_bits(params, plain)) << "zero_grad forgets, and a parameter without a gradient stays";
  EXPECT_EQ(optimizer.state_of(params[0])->step(), 2);
  EXPECT_EQ(optimizer.state_of(params[2])->step(), 1);
}

// Several backward passes add up in host memory: as torch adds in the gradients' own type, or in fp32.
TEST(TorchOffload, AccumulatesInHostMemory) {
  for (const char* offload : {"host", "stream"}) {
    for (const bool fp32 : {false, true}) {
      for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
        const Tensors params = some_params(type), plain = some_params(type);
        AdamW optimizer(params,
                        with(offload).offload_gradients(true).accumulate_in_fp32(fp32).min_offload_size(0));
        AdamW reference(plain, with("none"));
        for (std::int64_t step = 0; step < 3; ++step) {
          optimizer.zero_grad(), reference.zero_grad();
          Tensors sums(plain.size());
          for (std::int64_t pass = 1; pass <= 4; ++pass) {
            loss_of(params, 4 * step + pass).backward();
            loss_of(plain, 4 * step + pass).backward();
            for (std::size_t i = 0; fp32 && i < plain.size(); ++i) {
              const torch::Tensor wide = plain[i].grad().to(torch::kFloat32);
              sums[i] = sums[i].defined() ? sums[i] + wide : wide.clone();
              plain[i].mutable_grad().reset();
            }
            EXPECT_FALSE(params[0].grad().defined());
          }
          for (std::size_t i = 0; fp32 && i < plain.size(); ++i) plain[i].mutable_grad() = sums[i];
          if (step == 1) {  // somebody adds to a gradient that was taken
            params[0].mutable_grad() = gradient(params[0], 7).to(type);
            plain[0].mutable_grad() =
                plain[0].grad() + gradient(plain[0], 7).to(plain[0].grad().scalar_type());
          }
          optimizer.step(), reference.step();
        }
        EXPECT_TRUE(same_bits(params, plain)) << offload << fp32 << type;
        EXPECT_TRUE(same_bits(states(optimizer), states(reference))) << offload << fp32 << type;
      }
    }
  }
}

// What is read after step() belongs to the optimizer.
TEST(TorchOffload, ADeferredStepTakesOverWhatItReads) {
  const Tensors params = some_params(), plain = copies(params);
  AdamW optimizer(params, with("stream")), reference(plain, with("none"));
  optimizer.attach();
  EXPECT_TRUE(optimizer.attached());
  const torch::Tensor scale = torch::full({1}, 8.0F), theirs = torch::full({1}, 8.0F);
  const torch::Tensor rate = torch::full({1}, 1e-2F), their_rate = torch::full({1}, 1e-2F);
  optimizer.set_loss_scale(scale), reference.set_loss_scale(theirs);
  optimizer.set_lr(0, rate), reference.set_lr(0, their_rate);
  for (std::int64_t step = 1; step <= 4; ++step) {
    give_gradients(params, step), give_gradients(plain, step);
    optimizer.step(), reference.step();
    scale.mul_(2), theirs.mul_(2);
    rate.mul_(0.5), their_rate.mul_(0.5);
    EXPECT_FALSE(params[0].grad().defined());
    optimizer.wait({params[2], params[1]});  // in another order than they were given
    optimizer.wait({params[0], torch::ones({3})});
    EXPECT_TRUE(same_bits(params, plain)) << step;
  }
  EXPECT_TRUE(same_bits(states(optimizer), states(reference)));
}

// No step is deferred without offload, so each step reads the present value of a scalar.
TEST(TorchOffload, WithoutOffloadAnAttachedOptimizerReadsItsScalarsAgain) {
  const Tensors params = some_params(), plain = copies(params);
  AdamW optimizer(params, with("none")), reference(plain, with("none"));
  optimizer.attach();
  const torch::Tensor rate = torch::full({1}, 1e-2F), their_rate = torch::full({1}, 1e-2F);
  optimizer.set_lr(0, rate), reference.set_lr(0, their_rate);
  for (std::int64_t step = 1; step <= 3; ++step) {
    give_gradients(params, step), give_gradients(plain, step);
    optimizer.step(), reference.step();
    rate.mul_(0.5), their_rate.mul_(0.5);
    EXPECT_TRUE(same_bits(params, plain)) << step;
  }
}

struct TwoLayers : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(64, 80));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(80, 64));
};

// The loop of docs/guides/libtorch.md.
TEST(TorchOffload, TheForwardPassWaitsForItsModules) {
  torch::manual_seed(3);
  TwoLayers model, plain;
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 4; ++i) plain.parameters()[i].copy_(model.parameters()[i]);
  }
  std::vector<std::pair<torch::Tensor, torch::Tensor>> batches;
  for (int i = 0; i < 3; ++i) batches.emplace_back(torch::randn({9, 64}), torch::randn({9, 64}));
  AdamW reference(plain.parameters(), AdamWOptions(1e-3).state("8bit"));
  for (const auto& [input, target] : batches) {
    reference.zero_grad();
    torch::mse_loss(plain.second->forward(torch::relu(plain.first->forward(input))), target).backward();
    reference.step();
  }
  AdamW opt(model.parameters(), AdamWOptions(1e-3).state("8bit").offload("stream").offload_gradients(true));
  opt.attach();
  for (const auto& [input, target] : batches) {
    opt.zero_grad();
    opt.wait(*model.first);  // the parameters of this module are up to date, in stream order
    torch::Tensor hidden = torch::relu(model.first->forward(input));
    opt.wait(*model.second);
    torch::mse_loss(model.second->forward(hidden), target).backward();
    opt.step();
  }
  opt.wait();
  EXPECT_TRUE(same_bits(model.parameters(), plain.parameters()));
}

// A step has several backward passes, and each forward pass waits for its modules. Gradients that a pass has
// offloaded are copied while the next forward pass runs. Their memory must not be reused until then, nor the
// memory of gradients that zero_grad() has dropped.
TEST(TorchOffload, WaitsLeaveGradientsThatAreStillCopied) {
  const auto trained = [](const char* offload, int seed) {
    const Delays delays(2000, seed);
    torch::manual_seed(4);
    torch::nn::Linear layer(torch::nn::LinearOptions(96, 96).bias(false));
    AdamWOptions options = with(offload, "fp32").min_offload_size(0);
    const bool offloads = std::string(offload) != "none";
    AdamW optimizer(layer->parameters(), options.offload_gradients(offloads));
    if (offloads) optimizer.attach();
    for (int step = 0; step < 4; ++step) {
      for (int pass = 0; pass < 4; ++pass) {
        if (pass <= 1) optimizer.zero_grad();  // the first pass is in vain
        optimizer.wait(*layer);
        Tensors activations;
        for (int i = 0; i < 20; ++i)
          activations.push_back(torch::full({96, 96}, 7.0F + static_cast<float>(i)));
        layer->forward(torch::randn({8, 96})).square().sum().backward();
      }
      optimizer.step();
    }
    optimizer.wait();
    return layer->weight.detach().clone();
  };
  const torch::Tensor expected = trained("none", 1);
  for (const char* offload : {"host", "stream"}) {
    for (int seed = 1; seed <= 3; ++seed)
      EXPECT_TRUE(same_bits(trained(offload, seed), expected)) << offload << " " << seed;
  }
}

TEST(TorchOffload, SavesTheSameBytesAndLoadsIntoAnyResidence) {
  const Tensors plain = some_params();
  AdamW reference(plain, with("none"));
  train(reference, plain, 2);
  const std::string bytes = saved(reference);
  for (const char* offload : {"host", "stream"}) {
    const Tensors params = some_params();
    AdamW optimizer(params, with(offload).offload_gradients(true));
    train(optimizer, params, 2);
    EXPECT_EQ(saved(optimizer), bytes) << offload;
    for (const char* other : {"none", "host", "stream"}) {
      const Tensors next = copies(params), expected = copies(plain);
      AdamW loaded(next, with(other)), theirs(expected, with("none"));
      for (AdamW* each : {&loaded, &theirs}) {
        std::istringstream in(bytes);
        torch::serialize::InputArchive archive;
        archive.load_from(in);
        each->load(archive);
      }
      EXPECT_EQ(loaded.residence_of(next[0]), std::string(other) == "none" ? "device" : std::string(other));
      train(loaded, next, 3), train(theirs, expected, 3);
      EXPECT_TRUE(same_bits(next, expected)) << offload << " to " << other;
      EXPECT_EQ(saved(loaded), saved(theirs));
    }
  }
}

// States are contiguous, so that one copy moves several.
TEST(TorchOffload, StatesLieInOneBlock) {
  const Tensors params = some_params();
  AdamW optimizer(params, with("stream"));
  train(optimizer, params, 1);
  const auto begin = [&](std::size_t i) {
    return static_cast<const std::byte*>(optimizer.state_of(params[i])->codes[0].data_ptr());
  };
  const auto first = octavo::torch::host_bytes(optimizer.kind_of(params[0]));
  EXPECT_EQ(begin(2), begin(0) + first);
  EXPECT_EQ(optimizer.host_state_bytes(),
            optimizer.state_of(params[0])->bytes() + optimizer.state_of(params[2])->bytes());
  // A loaded state comes there, too.
  const auto* const place = begin(0);
  auto other = std::make_unique<octavo::torch::ParamState>(*optimizer.state_of(params[0]));
  octavo::torch::ParamState::each(*other, [](const std::string&, torch::Tensor& t) {
    if (t.defined()) t = t.clone();
  });
  optimizer.set_state(params[0], std::move(other));
  EXPECT_NE(begin(0), place);
  give_gradients(params, 2);
  optimizer.step();
  EXPECT_EQ(begin(0), place);
}

TEST(TorchOffload, SplitsByRatioAndBudget) {
  const auto residences = [&](const AdamWOptions& options) {
    const Tensors params = some_params();
    AdamW optimizer(params, options);
    std::string out;
    for (const torch::Tensor& param : params) out += std::string(optimizer.residence_of(param)) + " ";
    train(optimizer, params, 1);
    return out;
  };
  EXPECT_EQ(residences(with("none")), "device device device ");
  EXPECT_EQ(residences(with("auto")), "device device device ") << "parameters on the CPU";
  EXPECT_EQ(residences(with("host")), "host device host ");
  EXPECT_EQ(residences(with("stream").min_offload_size(0)), "stream stream stream ");
  EXPECT_EQ(residences(with("stream").min_offload_size(5000)), "device device stream ");
  EXPECT_EQ(residences(with("stream").offload_ratio(0)), "device device device ");
  EXPECT_EQ(residences(with("stream").offload_ratio(0.5)), "device device stream ");
  EXPECT_EQ(residences(with("host").gpu_state_budget(9000)), "device device host ");
  EXPECT_EQ(residences(with("host").gpu_state_budget(0)), "host device host ");
}

// The host updates copies of weights, so it must notice other writes to the weights.
TEST(TorchOffload, WeightsThatOthersWrite) {
  for (const char* offload : {"host", "stream"}) {
    const Tensors params = some_params(), plain = copies(params);
    AdamW optimizer(params, with(offload)), reference(plain, with("none"));
    train(optimizer, params, 1), train(reference, plain, 1);
    {
      const torch::NoGradGuard no_grad;
      params[0].mul_(2), plain[0].mul_(2);
    }
    train(optimizer, params, 1), train(reference, plain, 1);
    EXPECT_TRUE(same_bits(params, plain)) << offload << ": in place";
    params[0].data().add_(1), plain[0].data().add_(1);  // autograd does not see this
    optimizer.sync_params("to_host");
    train(optimizer, params, 1), train(reference, plain, 1);
    EXPECT_TRUE(same_bits(params, plain)) << offload << ": synchronized";
    params[2].set_data(params[2].detach().clone() * 3), plain[2].set_data(plain[2].detach().clone() * 3);
    train(optimizer, params, 1), train(reference, plain, 1);
    EXPECT_TRUE(same_bits(params, plain)) << offload << ": moved";
    EXPECT_THAT(error_of([&] { optimizer.sync_params("up"); }), HasSubstr("got 'up', expected \"to_host\""));
  }
}

// A parameter whose memory moves between the backward pass and the step.
TEST(TorchOffload, MovedWhileItsGradientIsHeld) {
  const Tensors params = some_params(), plain = copies(params);
  AdamW optimizer(params, with("host").offload_gradients(true)), reference(plain, with("none"));
  train(optimizer, params, 1), train(reference, plain, 1);
  optimizer.zero_grad(), reference.zero_grad();
  loss_of(params, 2).backward(), loss_of(plain, 2).backward();
  params[0].set_data(params[0].detach().clone()), plain[0].set_data(plain[0].detach().clone());
  optimizer.step(), reference.step();
  EXPECT_TRUE(same_bits(params, plain));
  // And one whose step counts move, because the step may be skipped from now on.
  const torch::Tensor found = torch::zeros({1});
  optimizer.zero_grad(), reference.zero_grad();
  loss_of(params, 3).backward(), loss_of(plain, 3).backward();
  optimizer.set_found_inf(found), reference.set_found_inf(found);
  optimizer.step(), reference.step();
  EXPECT_TRUE(same_bits(params, plain));
}

TEST(TorchOffload, MovesAndEndsWithWorkUnderWay) {
  const Tensors params = some_params(), plain = copies(params);
  AdamW reference(plain, with("none"));
  train(reference, plain, 2);
  {
    AdamW first(params, with("host").offload_gradients(true));
    first.attach();
    train(first, params, 1);
    AdamW second(std::move(first));
    second.zero_grad();
    loss_of(params, 2).backward();
    second.step();
    AdamW third(some_params(), with("stream"));
    third = std::move(second);
  }
  EXPECT_TRUE(same_bits(params, plain));
}

// Memory that a deferred step writes is kept until the step was waited for, also when states are removed.
TEST(TorchOffload, StatesAndWeightsOutliveTheirSteps) {
  for (const char* offload : {"host", "stream"}) {
    const Delays delays(2000);
    const Tensors params = some_params(), plain = copies(params);
    AdamW optimizer(params, with(offload)), reference(plain, with("none"));
    optimizer.attach();
    for (std::int64_t step = 1; step <= 3; ++step) {
      loss_of(params, step).backward();
      optimizer.step();
      std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
      const auto watch = [&](const torch::Tensor& tensor) {
        memory.emplace_back(
            c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
      };
      for (const torch::Tensor& param : params) {
        if (param.numel() < 4096) continue;  // its state is on the device
        const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
        watch(static_cast<octavo::torch::ParamState&>(*found->second).count);
      }
      ASSERT_EQ(memory.size(), 2);
      watch(params[0]);
      optimizer.state().clear();
      params[0].set_data(params[0].detach().clone());
      for (const auto& each : memory) EXPECT_FALSE(each.expired()) << offload << " step " << step;
      optimizer.wait();
      EXPECT_TRUE(memory.back().expired()) << offload;
      loss_of(plain, step).backward();
      reference.step();
      reference.state().clear();
      {
        const torch::NoGradGuard no_grad;
        params[0].copy_(plain[0]);  // the new memory lacks the update
      }
      optimizer.zero_grad();
      reference.zero_grad();
      EXPECT_TRUE(same_bits(params, plain)) << offload << " step " << step;
    }
  }
}

TEST(TorchOffload, OptionsThatCannotBe) {
  const auto error = [&](const AdamWOptions& options) {
    return error_of([&] { AdamW(some_params(), options); });
  };
  EXPECT_THAT(error(with("gpu")), HasSubstr("Invalid offload: 'gpu', expected \"none\", \"host\""));
  EXPECT_THAT(error(with("host").offload_ratio(1.5)), HasSubstr("Invalid offload_ratio: 1.5"));
  EXPECT_THAT(error(with("host").gpu_state_budget(-2)), HasSubstr("Invalid gpu_state_budget: -2"));
  EXPECT_THAT(error(with("host").min_offload_size(-1)), HasSubstr("Invalid min_offload_size: -1"));
  EXPECT_THAT(error(with("host").offload_ratio(0.5).gpu_state_budget(1)), HasSubstr("expected one of them"));
  EXPECT_THAT(error(with("none").offload_gradients(true)),
              HasSubstr("offload_gradients needs states in host"));
  EXPECT_THAT(error(with("stream").capturable(true)),
              HasSubstr("a CUDA graph cannot hold the work of the host"));
  EXPECT_THAT(error_of([&] {
                AdamW(std::vector<ParamGroup>{ParamGroup(
                          some_params(), std::make_unique<AdamWOptions>(AdamWOptions(1e-2).offload("host")))},
                      with("none"));
              }),
              HasSubstr("group 0: offload is of the whole optimizer"));
}

TEST(TorchCuda, OffloadHasTheBitsOfTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  if (octavo::gpu_info().runtime_version == 0) GTEST_SKIP() << "this build has no CUDA backend";
  const auto there = [](const Tensors& params) {
    Tensors out;
    for (const torch::Tensor& p : params) out.push_back(p.detach().to(torch::kCUDA).requires_grad_());
    return out;
  };
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    const Tensors plain = some_params(type);
    AdamW reference(plain, with("none"));
    train(reference, plain, 4);
    for (const char* offload : {"host", "stream", "auto"}) {
      for (const bool take : {false, true}) {
        for (const bool attach : {false, true}) {
          const Tensors params = there(some_params(type));
          AdamW optimizer(params, with(offload).offload_gradients(take));
          if (attach) optimizer.attach();
          for (std::int64_t step = 1; step <= 4; ++step) {
            optimizer.zero_grad();
            loss_of(params, step).backward();
            optimizer.step();
            for (const torch::Tensor& param : params) optimizer.wait({param});
          }
          EXPECT_EQ(optimizer.state_of(params[0])->codes[0].device(), torch::Device(torch::kCPU));
          EXPECT_TRUE(same_bits(params, plain)) << offload << take << attach;
          EXPECT_TRUE(same_bits(states(optimizer), states(reference))) << offload << take << attach;
        }
      }
    }
  }
}

}  // namespace
}  // namespace test
