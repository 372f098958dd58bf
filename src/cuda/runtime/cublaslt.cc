// SPDX-License-Identifier: MIT
#include "cuda/runtime/cublaslt.h"

#include "cuda/runtime/cublaslt_api.h"
#include "cuda/runtime/runtime.h"
#include "status/first_error.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace octavo::cuda {
namespace {

#if __has_include(<cublasLt.h>)
static_assert(sizeof(lt::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(lt::Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(lt::Heuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(lt::kFloat32 == CUDA_R_32F && lt::kFloat16 == CUDA_R_16F && lt::kBfloat16 == CUDA_R_16BF);
static_assert(lt::kE4M3 == CUDA_R_8F_E4M3 && lt::kE5M2 == CUDA_R_8F_E5M2);
static_assert(lt::kScaleA == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
static_assert(lt::kScaleB == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
static_assert(lt::kFastSums == CUBLASLT_MATMUL_DESC_FAST_ACCUM);
#if CUBLAS_VERSION >= 120900
static_assert(lt::kScaleModeA == CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
static_assert(lt::kScaleModeB == CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
static_assert(lt::kScaleOfRow == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
static_assert(lt::kScaleOfLine == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
static_assert(lt::kScaleOfSquare == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
#endif
static_assert(lt::kCompute32 == CUBLAS_COMPUTE_32F);
static_assert(lt::kPlain == CUBLAS_OP_N && lt::kTransposed == CUBLAS_OP_T);
static_assert(lt::kTransposeA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(lt::kTransposeB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(lt::kEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(lt::kBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(lt::kEpilogueBias == CUBLASLT_EPILOGUE_BIAS);
static_assert(lt::kMaxWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(lt::kReductions == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(lt::kAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(lt::kAlignmentB == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(lt::kAlignmentC == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(lt::kAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(lt::kReductionInWorkspace == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
#endif

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr const char* kVariable = "OCTAVO_CUBLASLT";

// Opens the library that the process has loaded, then the one that the system finds, then the one that the
// user names.
void* open_library(std::string& tried) {
  for (const int how : {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY}) {
    for (const char* name : kNames) {
      if (void* library = dlopen(name, how); library != nullptr) return library;
    }
  }
  tried = std::string(kNames[0]) + " and " + kNames[1] + " were not found";
  const char* path = std::getenv(kVariable);
  if (path == nullptr || *path == '\0') return nullptr;
  if (void* library = dlopen(path, RTLD_LAZY); library != nullptr) return library;
  const char* why = dlerror();
  tried += ", and " + std::string(kVariable) + " did not load: " + (why != nullptr ? why : path);
  return nullptr;
}

struct Library {
  lt::Functions functions{};
  Status status;
};

Library load_library() {
  Library out;
  std::string tried;
  void* const library = open_library(tried);
  if (library == nullptr) {
    out.status = Status::unsupported("[cublaslt] matmuls on a GPU need cuBLASLt: ", tried,
                                     "; install it (pip install nvidia-cublas, or the CUDA toolkit), import "
                                     "torch with CUDA first, or set ",
                                     kVariable, " to the library's path");
    return out;
  }
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        dlsym(library, (std::string("cublasLt") + name).c_str()));
    if (function == nullptr) missing += (missing.empty() ? "cublasLt" : ", cublasLt") + std::string(name);
  };
  lt::Functions& f = out.functions;
  find(f.Create, "Create");
  find(f.Matmul, "Matmul");
  find(f.MatmulDescCreate, "MatmulDescCreate");
  find(f.MatmulDescDestroy, "MatmulDescDestroy");
  find(f.MatmulDescSetAttribute, "MatmulDescSetAttribute");
  find(f.MatrixLayoutCreate, "MatrixLayoutCreate");
  find(f.MatrixLayoutDestroy, "MatrixLayoutDestroy");
  find(f.MatmulPreferenceCreate, "MatmulPreferenceCreate");
  find(f.MatmulPreferenceDestroy, "MatmulPreferenceDestroy");
  find(f.MatmulPreferenceSetAttribute, "MatmulPreferenceSetAttribute");
  find(f.MatmulAlgoGetHeuristic, "MatmulAlgoGetHeuristic");
  if (!missing.empty())
    out.status = Status::unsupported("[cublaslt] the library that was loaded lacks " + missing);
  return out;
}

const Library& library() {
  static const Library loaded = load_library();
  return loaded;
}

int data_type(DType dtype) {
  return dtype == DType::f32 ? lt::kFloat32 : dtype == DType::bf16 ? lt::kBfloat16 : lt::kFloat16;
}

int data_type(fp8::Element element) { return element == fp8::Element::e4m3 ? lt::kE4M3 : lt::kE5M2; }

std::int32_t scale_mode(fp8::Tiling tiling) {
  switch (tiling) {
    case fp8::Tiling::row:
      return lt::kScaleOfRow;
    case fp8::Tiling::tile_1x128:
      return lt::kScaleOfLine;
    case fp8::Tiling::tile_128x128:
      return lt::kScaleOfSquare;
    case fp8::Tiling::tensor:
      break;
  }
  return lt::kOneScale;
}

std::string text(const Fp8Operands& both) {
  const auto one = [](const Fp8Operand& operand) {
    return std::string(fp8::name(operand.element)) + " (a scale for each " +
           std::string(fp8::name(operand.tiling)) + ")";
  };
  return one(both.a) + " and " + one(both.b);
}

std::string shape_text(const Product& p) {
  return std::to_string(p.rows) + " x " + std::to_string(p.columns) + " x " + std::to_string(p.inner) +
         " in " + (p.fp8 ? text(*p.fp8) : std::string(name(p.from)));
}

// The alignments in bytes that an algorithm may assume for the addresses of a matmul.
struct Alignments {
  std::uint32_t a = 0, b = 0, to = 0, bias = 0;

  auto operator<=>(const Alignments&) const = default;
};
// Returns the largest power of two that divides the address, up to 256: a larger one changes no algorithm.
std::uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::uint32_t found = 256;
  while (address % found != 0) found /= 2;
  return found;
}

// The library's matrices are column-major, so the plan computes the transpose: to' = b' · a'.
struct Plan {
  lt::Operation operation = nullptr;
  lt::Layout a = nullptr, b = nullptr, to = nullptr;
  lt::Algorithm algorithm{};
};

class Planner {
 public:
  explicit Planner(const lt::Functions& functions) : f_(functions) {}

  Status make(lt::Handle handle, const Product& p, const Alignments& at, Plan& plan) {
    const std::int32_t turn_b = p.b_turned ? lt::kTransposed : lt::kPlain;
    const std::int32_t turn_a = p.a_turned ? lt::kTransposed : lt::kPlain;
    check(f_.MatmulDescCreate(&plan.operation, lt::kCompute32, lt::kFloat32), "MatmulDescCreate");
    set(plan, lt::kTransposeA, turn_b);
    set(plan, lt::kTransposeB, turn_a);
    if (p.bias) {
      set(plan, lt::kEpilogue, lt::kEpilogueBias);
      // Each call sets its own address. This placeholder address has the alignment of the real one.
      set(plan, lt::kBiasPointer, std::uint64_t{at.bias});
    }
    if (p.fp8) set_scales(plan, *p.fp8);
    const int a_type = p.fp8 ? data_type(p.fp8->a.element) : data_type(p.from);
    const int b_type = p.fp8 ? data_type(p.fp8->b.element) : data_type(p.from);
    layout(plan.b, b_type, p.b_turned ? p.inner : p.columns, p.b_turned ? p.columns : p.inner, p.b_pitch);
    layout(plan.a, a_type, p.a_turned ? p.rows : p.inner, p.a_turned ? p.inner : p.rows, p.a_pitch);
    layout(plan.to, data_type(p.to), p.columns, p.rows, p.to_pitch);
    lt::Preference preference = nullptr;
    check(f_.MatmulPreferenceCreate(&preference), "MatmulPreferenceCreate");
    if (ok()) {
      const std::uint64_t room = kProductWorkspace;
      const std::uint32_t reductions = lt::kReductionInWorkspace;
      check(f_.MatmulPreferenceSetAttribute(preference, lt::kMaxWorkspace, &room, sizeof room), "workspace");
      check(f_.MatmulPreferenceSetAttribute(preference, lt::kReductions, &reductions, sizeof reductions),
            "reductions");
      for (const auto& [attribute, bytes] :
           {std::pair(lt::kAlignmentA, at.b), std::pair(lt::kAlignmentB, at.a),
            std::pair(lt::kAlignmentC, at.to), std::pair(lt::kAlignmentD, at.to)})
        check(f_.MatmulPreferenceSetAttribute(preference, attribute, &bytes, sizeof bytes), "an alignment");
      lt::Heuristic found[kMost];
      int count = 0;
      check(f_.MatmulAlgoGetHeuristic(handle, plan.operation, plan.b, plan.a, plan.to, plan.to, preference,
                                      kMost, found, &count),
            "MatmulAlgoGetHeuristic");
      (void)f_.MatmulPreferenceDestroy(preference);
      const std::span proposed(found, static_cast<std::size_t>(ok() ? count : 0));
      const auto best = std::ranges::find(proposed, 0, &lt::Heuristic::state);
      if (best == proposed.end())
        check(15, "MatmulAlgoGetHeuristic, which returned no algorithm,");
      else
        plan.algorithm = best->algorithm;
    }
    if (ok()) return {};
    drop(plan);
    return Status::failed("[cublaslt] ", what_, " of a matmul of ", shape_text(p), ": cublasStatus_t ",
                          status_);
  }

 private:
  static constexpr int kMost = 8;  // candidates, best first; the first one that the GPU supports is used
  static constexpr std::uint64_t kSomeScale = 256;

  void set_scales(Plan& plan, const Fp8Operands& both) {
    const auto fast = static_cast<std::int8_t>(both.fast);
    set(plan, lt::kFastSums, fast);
    set(plan, lt::kScaleA, kSomeScale);  // each call sets its own
    set(plan, lt::kScaleB, kSomeScale);
    // An older library has only this mode and no attribute for it.
    if (both.a.tiling == fp8::Tiling::tensor && both.b.tiling == fp8::Tiling::tensor) return;
    set(plan, lt::kScaleModeA, scale_mode(both.b.tiling));
    set(plan, lt::kScaleModeB, scale_mode(both.a.tiling));
  }

  [[nodiscard]] bool ok() const { return status_ == 0; }
  void check(lt::Status status, const char* what) {
    if (!ok()) return;
    status_ = status;
    what_ = what;
  }
  template <class T>
  void set(Plan& plan, int attribute, T value) {
    if (ok())
      check(f_.MatmulDescSetAttribute(plan.operation, attribute, &value, sizeof value), "an attribute");
  }
  void layout(lt::Layout& out, int type, std::int64_t rows, std::int64_t columns, std::int64_t pitch) {
    if (ok()) {
      check(f_.MatrixLayoutCreate(&out, type, static_cast<std::uint64_t>(rows),
                                  static_cast<std::uint64_t>(columns), pitch),
            "MatrixLayoutCreate");
    }
  }
  void drop(Plan& plan) {
    if (plan.operation != nullptr) (void)f_.MatmulDescDestroy(plan.operation);
    for (lt::Layout layout : {plan.a, plan.b, plan.to}) {
      if (layout != nullptr) (void)f_.MatrixLayoutDestroy(layout);
    }
    plan = {};
  }

  const lt::Functions& f_;
  lt::Status status_ = 0;
  std::string what_;
};

// A device's handle and its plans, which live as long as the process.
struct DevicePlans {
  lt::Handle handle = nullptr;
  std::map<std::pair<Product, Alignments>, Plan> plans;
};
struct AllPlans {
  std::mutex mutex;
  std::map<int, DevicePlans> devices;
};
AllPlans& all_plans() {
  static AllPlans* const plans = new AllPlans;  // the driver may be unloaded before static objects end
  return *plans;
}

// REQUIRES: the mutex is locked.
Result<std::pair<lt::Handle, Plan*>> plan_of(AllPlans& all, const Product& product, const Alignments& at) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess)
    return failed("[cublaslt]", error);
  const lt::Functions& f = library().functions;
  DevicePlans& own = all.devices[device];
  if (own.handle == nullptr) {
    if (const lt::Status bad = f.Create(&own.handle); bad != 0) {
      return Status::failed("[cublaslt] cublasLtCreate on cuda:", device, ": cublasStatus_t ", bad);
    }
  }
  const auto found = own.plans.find({product, at});
  if (found != own.plans.end()) return std::pair(own.handle, &found->second);
  Plan plan;
  OCTAVO_TRY(Planner(f).make(own.handle, product, at, plan));
  return std::pair(own.handle, &own.plans.emplace(std::pair(product, at), std::move(plan)).first->second);
}

}  // namespace

Status load_products() { return library().status; }

Status multiply(const Product& product, const ProductMemory& memory, void* workspace, cudaStream_t stream) {
  OCTAVO_TRY(load_products());
  const lt::Functions& f = library().functions;
  AllPlans& all = all_plans();
  const std::lock_guard lock(
      all.mutex);  // the plan contains this call's bias and scale addresses until the matmul is queued
  auto found = plan_of(
      all, product, {alignment(memory.a), alignment(memory.b), alignment(memory.to), alignment(memory.bias)});
  if (!found.ok()) return found.status();
  const auto& [handle, plan] = *found;
  lt::Status status = 0;
  if (product.bias) {
    status = f.MatmulDescSetAttribute(plan->operation, lt::kBiasPointer, &memory.bias, sizeof memory.bias);
  }
  if (product.fp8) {
    const auto set = [&](int attribute, const float* inverse) {
      if (status == 0)
        status = f.MatmulDescSetAttribute(plan->operation, attribute, &inverse, sizeof inverse);
    };
    set(lt::kScaleA, memory.b_inverse);
    set(lt::kScaleB, memory.a_inverse);
  }
  if (status == 0) {
    const float one = 1.0F, before = product.add ? 1.0F : 0.0F;
    status = f.Matmul(handle, plan->operation, &one, memory.b, plan->b, memory.a, plan->a, &before, memory.to,
                      plan->to, memory.to, plan->to, &plan->algorithm, workspace, kProductWorkspace, stream);
  }
  if (status == 0) return {};
  return Status::failed("[cublaslt] a matmul of ", shape_text(product), ": cublasStatus_t ", status);
}

}  // namespace octavo::cuda
