/* The C ABI: steps, norms, layouts, converters, the inspector, dropout, the transducer loss, FP8 matmuls and
 * plans over plain structs, for engines and other languages.
 *
 * The current CUDA device of the calling thread: a call on a GPU makes that GPU current and then restores the
 * previous device only if this process has a CUDA context there. Otherwise the call's GPU stays current.
 *
 * Rules: every function that can fail returns an octavo_status and, on failure, leaves a message for this
 * thread in octavo_last_error(). A failed call writes no buffer. Structs begin with struct_size, set by the
 * caller to sizeof(the struct it was compiled with): fields added later at the end read as zero from older
 * callers. Enumerators have the values of octavo/types.h. The caller owns all memory.
 * SPDX-License-Identifier: MIT */
#ifndef OCTAVO_OCTAVO_H_
#define OCTAVO_OCTAVO_H_

#include <octavo/export.h>
#include <octavo/version.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t octavo_status; /* 0 ok, 1 invalid argument, 2 unsupported, 3 failed */

OCTAVO_API const char* octavo_version_string(void);
OCTAVO_API uint32_t octavo_abi_version(void);
/* The last failure of this thread, "" if none; valid until the thread's next failing call. */
OCTAVO_API const char* octavo_last_error(void);
/* No function lets a C++ exception out. Where a function returns no octavo_status, its result shows a failure
 * and octavo_last_error() gives the reason:
 * - -1 from the functions that return the bytes or the length of a buffer (octavo_..._bytes and
 *   octavo_grad_norm_workspace);
 * - -1 from octavo_algorithm_slots, octavo_algorithm_passes and octavo_engine_failed_tensor. They return it
 *   without a failure too, as described there, and then leave octavo_last_error() unchanged;
 * - 0 from octavo_host_room and from the functions that return any other number;
 * - NULL from the functions that return a pointer. */

/* The implementation in use ("avx2"), or NULL with an error (a bad OCTAVO_FORCE_IMPL). */
OCTAVO_API const char* octavo_implementation(void);
OCTAVO_API octavo_status octavo_force_implementation(const char* name);
OCTAVO_API octavo_status octavo_set_default_threads(int32_t threads);
OCTAVO_API int32_t octavo_default_threads(void);

/* Names to numbers: kind is "dtype", "state", "store", "optimizer", "reduction" (of the transducer loss), or
 * of FP8 "fp8_format", "fp8_recipe", "amax_compute_algo", "activation". */
OCTAVO_API octavo_status octavo_parse(const char* kind, const char* name, uint32_t* out);

/* What an algorithm says of itself. Strings live as long as the library. */
typedef struct {
  uint32_t struct_size;
  uint32_t number;           /* what octavo_group_config.algorithm takes */
  const char* name;          /* "adamw" */
  const char* title;         /* "AdamW" */
  uint32_t family;           /* algorithms of one formula share it */
  uint32_t decay;            /* 1 weight decay is added to the gradient, 2 applied to the parameter */
  int32_t options;           /* how many: octavo_algorithm_option */
  uint32_t update_is_rate;   /* an update is about as large as the learning rate */
  uint32_t first_step_fills; /* the first step fills the moments, so a new moment begins at step 1 */
  uint32_t excluded_formats; /* a bit for the number of each state format that it does not take */
} octavo_algorithm_info;

/* One hyper-parameter, in the order of torch's arguments (or bitsandbytes'). */
typedef struct {
  uint32_t struct_size;
  uint32_t range;    /* 0 any finite number, 1 at least 0, 2 above 0, 3 at least 0 and below 1, 4 a flag */
  const char* name;  /* "beta1" */
  const char* tuple; /* "betas": the option of torch that it is a part of; "" if none */
  double value;      /* the default */
  int32_t offset;    /* its byte in octavo_step_args: a double, a uint32_t for a flag; -1: it only switches */
  int32_t switch_bit; /* where it is not 0 there are other moments: octavo_group_config.switches; -1: no */
  uint32_t optional;  /* may be None, which is 0 here */
  uint32_t reserved;
} octavo_option_info;

/* One moment that is kept. */
typedef struct {
  uint32_t struct_size;
  uint32_t moment;  /* 0 first, 1 second */
  const char* name; /* torch's */
  const char* peer; /* bitsandbytes' */
} octavo_slot_info;

OCTAVO_API int32_t octavo_algorithm_count(void);
/* `index` from 0 to octavo_algorithm_count() - 1, in the order of numbers; it is not the number. */
OCTAVO_API octavo_status octavo_algorithm(int32_t index, octavo_algorithm_info* out);
OCTAVO_API octavo_status octavo_algorithm_option(int32_t index, int32_t option, octavo_option_info* out);
/* The number of moments that the algorithm keeps with these switches, and how often a step reads the
 * gradients. -1: there is no such index, or the algorithm does not have that combination of switches. */
OCTAVO_API int32_t octavo_algorithm_slots(int32_t index, uint32_t switches);
OCTAVO_API int32_t octavo_algorithm_passes(int32_t index, uint32_t switches);
OCTAVO_API octavo_status octavo_algorithm_slot(int32_t index, uint32_t switches, int32_t slot,
                                               octavo_slot_info* out);

/* What a state format keeps of each moment. */
typedef struct {
  uint32_t bits;     /* of a code */
  uint32_t scale;    /* 0 none, 1 one for each block, 2 one for each slice of each axis */
  uint32_t rounding; /* in a step: 0 to nearest, 1 stochastically */
  int32_t zero_code; /* the code that is zero whatever its scale; -1 if there is none */
  /* What holds the codes: "float32", "bfloat16", "uint8", "float8_e4m3fn" and "float8_e5m2" have one element
   * for each of the parameter's, "packed" is a row of bytes. */
  const char* element;
} octavo_moment_format;

typedef struct {
  uint32_t struct_size;
  uint32_t number;       /* what octavo_tensor_spec.format takes */
  const char* name;      /* "8bit"; octavo_parse knows other spellings too */
  int64_t default_block; /* elements; 0: the format has no blocks */
  octavo_moment_format moment[2];
  uint32_t of_vectors; /* what a tensor of fewer than two dimensions is stored in: axis scales need two */
  uint32_t reserved;
} octavo_format_info;

OCTAVO_API int32_t octavo_format_count(void);
/* `index` from 0 to octavo_format_count() - 1, in the order of numbers. Strings live as long as the library:
 * they are constants of it. */
OCTAVO_API octavo_status octavo_format(int32_t index, octavo_format_info* out);

typedef struct {
  uint32_t struct_size;
  uint32_t algorithm;
  uint32_t amsgrad;
  uint32_t momentum;
  uint32_t device_kind; /* 0 cpu, 1 cuda: where every buffer of the group is */
  int32_t device_index;
  uint32_t
      switches; /* bit octavo_option_info.switch_bit of each option that is on; amsgrad and momentum too */
  uint32_t reserved;
} octavo_group_config;

typedef struct {
  uint32_t struct_size;
  uint32_t param_dtype;
  uint32_t grad_dtype;
  uint32_t store;
  uint32_t format;
  int32_t ndim;
  int64_t numel;
  int64_t block_size;
  int64_t shape[8];
} octavo_tensor_spec;

typedef struct {
  uint32_t struct_size;
  int32_t slots;
  int64_t codes_bytes[3];
  int64_t scales[3];
  int64_t residual_bytes;
  int64_t workspace_bytes;
} octavo_tensor_layout;

OCTAVO_API octavo_status octavo_layout(const octavo_group_config* config, const octavo_tensor_spec* spec,
                                       octavo_tensor_layout* out);

typedef struct {
  /* spec.struct_size is set, the same in a whole array: the tensor has no size of its own. What follows the
   * spec never changes; new fields go to the end of the spec. */
  octavo_tensor_spec spec;
  void* param;
  const void* grad;
  void* residual;
  void* codes[3];
  float* scales[3];
  uint64_t id;
  int64_t offset;
} octavo_tensor;

/* What a device reads and writes in its own memory: these have no struct_size and never change. */
typedef struct {
  uint8_t skipped;
  uint8_t pending; /* 0 once it is written here */
  uint8_t reserved[6];
  int64_t nonfinite;
} octavo_device_report;

typedef struct {
  double l2;
  double max;
  int64_t nonfinite;
} octavo_device_norm;

typedef struct {
  uint32_t struct_size;
  uint32_t guard;
  int32_t threads;
  uint32_t nesterov;
  uint32_t maximize;
  uint32_t decay; /* 0 by the optimizer's name, 1 added to the gradient, 2 applied to the parameter */
  int64_t step;
  uint64_t seed;
  double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
  double grad_factor;
  void* workspace;
  int64_t workspace_bytes;
  void* stream;    /* cuda: the cudaStream_t to work on */
  double max_norm; /* with scalar_norm: gradients are clipped to it; 0 does not clip */
  /* In the memory of the group's device; null: the value above is used. */
  const float* scalar_lr;
  int64_t* scalar_step;           /* steps taken so far; a step that is taken adds one and uses the sum */
  const float* scalar_loss_scale; /* gradients are divided by it, besides grad_factor */
  const float* scalar_found_inf;  /* not zero: the step is skipped */
  const octavo_device_norm* scalar_norm; /* of the gradients as they are; with guard its count decides */
  octavo_device_report* scalar_report;   /* receives what happened */
  double own[8]; /* the options that octavo_algorithm_option places here; their defaults are there, too */
} octavo_step_args;

typedef struct {
  uint32_t struct_size;
  uint32_t skipped;
  int64_t nonfinite;
  uint32_t pending; /* cuda: the outcome is not known yet; scalar_report receives it */
  uint32_t reserved;
} octavo_step_report;

/* args with every default of the C++ API (lr 1e-3, betas 0.9 and 0.999, eps 1e-8, factor 1; step 0 must be
 * set). The function of the short name fills the first version of the struct, which is all the room that a
 * program compiled then has; sources get the other one, and so should other languages. */
OCTAVO_API void octavo_step_args_init(octavo_step_args* args);
OCTAVO_API void octavo_step_args_init_sized(octavo_step_args* args, size_t struct_size);
#define octavo_step_args_init(args) octavo_step_args_init_sized((args), sizeof(octavo_step_args))

typedef struct octavo_group octavo_group;
OCTAVO_API octavo_status octavo_group_create(const octavo_group_config* config, const octavo_tensor* tensors,
                                             int64_t count, octavo_group** out);
OCTAVO_API octavo_status octavo_group_rebind(octavo_group* group, const octavo_tensor* tensors,
                                             int64_t count);
/* New gradients of the same dtypes and sizes, one per tensor. */
OCTAVO_API octavo_status octavo_group_rebind_grads(octavo_group* group, const void* const* grads,
                                                   int64_t count);
OCTAVO_API octavo_status octavo_group_step(octavo_group* group, const octavo_step_args* args,
                                           octavo_step_report* report);
OCTAVO_API int64_t octavo_group_workspace_bytes(const octavo_group* group);
OCTAVO_API void octavo_group_destroy(octavo_group* group);

typedef struct {
  const void* data;
  uint32_t dtype;
  uint32_t reserved;
  int64_t numel;
} octavo_grad_view;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  double l2;
  double max;
  int64_t nonfinite;
} octavo_grad_norm_result;

/* Doubles that octavo_grad_norm needs as workspace; negative on a bad argument. */
OCTAVO_API int64_t octavo_grad_norm_workspace(const octavo_grad_view* grads, int64_t count);
OCTAVO_API octavo_status octavo_grad_norm(const octavo_grad_view* grads, int64_t count, double* workspace,
                                          int64_t workspace_count, int32_t threads,
                                          octavo_grad_norm_result* out);
/* The same on the gradients' device, into its memory: what scalar_norm takes. The workspace, aligned to 16,
 * and out are on the device too; stream as in octavo_step_args. */
typedef struct octavo_norm octavo_norm;
OCTAVO_API octavo_status octavo_norm_create(uint32_t device_kind, int32_t device_index,
                                            const octavo_grad_view* grads, int64_t count, octavo_norm** out);
OCTAVO_API octavo_status octavo_norm_rebind(octavo_norm* norm, const octavo_grad_view* grads, int64_t count);
OCTAVO_API octavo_status octavo_norm_run(octavo_norm* norm, void* workspace, int64_t workspace_bytes,
                                         octavo_device_norm* out, void* stream, int32_t threads);
OCTAVO_API int64_t octavo_norm_workspace_bytes(const octavo_norm* norm);
OCTAVO_API void octavo_norm_destroy(octavo_norm* norm);

OCTAVO_API double octavo_clip_factor(double l2, double max_norm, double unscale);

typedef struct {
  uint32_t struct_size;
  uint32_t moment; /* 0 first, 1 second */
  uint32_t format;
  int32_t ndim;
  int64_t numel;
  int64_t block_size;
  int64_t shape[8];
} octavo_moment_spec;

OCTAVO_API octavo_status octavo_moment_layout(const octavo_moment_spec* spec, int64_t* codes_bytes,
                                              int64_t* scales);
OCTAVO_API octavo_status octavo_encode(const octavo_moment_spec* spec, const float* values, void* codes,
                                       float* scales);
OCTAVO_API octavo_status octavo_decode(const octavo_moment_spec* spec, const void* codes, const float* scales,
                                       float* values);
OCTAVO_API octavo_status octavo_convert(const octavo_moment_spec* from, const void* from_codes,
                                        const float* from_scales, const octavo_moment_spec* to,
                                        void* to_codes, float* to_scales);

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t bytes;
  double max_error;
  double relative_error;
  int64_t saturated;
  int64_t zeros;
  int64_t lost;
  int64_t nonfinite;
} octavo_moment_report;

OCTAVO_API octavo_status octavo_inspect(const octavo_moment_spec* spec, const void* codes,
                                        const float* scales, const float* reference,
                                        octavo_moment_report* out);

/* Dropout by counters: octavo/dropout.h is the same in C++ and says what each field means. */
typedef struct {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t device_kind; /* 0 cpu, 1 cuda */
  int32_t device_index;
  const void* from;
  void* to;
  int64_t outer, batch, inner;
  const int64_t* samples;
  double probability;
  uint64_t seed, step;
  uint32_t layer;
  int32_t threads;
  void* stream;
  int64_t row, pitch;
} octavo_dropout_args;

OCTAVO_API octavo_status octavo_dropout(const octavo_dropout_args* args);

/* The transducer loss (TDT, RNN-T): octavo/transducer.h is the same in C++, defines the loss and says what
 * each field means. */
typedef struct {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t device_kind; /* 0 cpu, 1 cuda */
  int32_t device_index;
  uint32_t kind;      /* 0 tdt, 1 rnnt */
  uint32_t reduction; /* 0 mean_batch, 1 mean, 2 mean_volume, 3 sum, 4 none */
  int64_t batch, frames, positions, tokens, blank;
  const void* token_logits;
  int64_t token_strides[3]; /* of clips, frames and positions, in elements; three zeros: dense */
  const void* duration_logits;
  int64_t duration_strides[3];
  const int64_t* durations;
  int64_t duration_count;
  const int64_t* targets;
  int64_t target_stride;
  const int64_t* logit_lengths;
  const int64_t* target_lengths;
  double sigma, omega;
  uint64_t seed, step;
  void* workspace;
  int64_t workspace_bytes;
  void* stream;
  int32_t threads;
  uint32_t reserved;
} octavo_transducer_args;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  const float* grad_losses;
  void* token_grad;
  int64_t token_strides[3];
  void* duration_grad;
  int64_t duration_strides[3];
} octavo_transducer_grads;

/* Negative on a bad argument. */
OCTAVO_API int64_t octavo_transducer_workspace_bytes(const octavo_transducer_args* args);
OCTAVO_API octavo_status octavo_transducer_loss(const octavo_transducer_args* args, float* losses);
OCTAVO_API octavo_status octavo_transducer_gradient(const octavo_transducer_args* args,
                                                    const octavo_transducer_grads* grads);

/* The same with the joint network: TransducerJoint of octavo/transducer.h. */
typedef struct {
  uint32_t struct_size;
  uint32_t bias_dtype;
  int64_t hidden;
  const void* encoder;
  const void* predictor;
  const void* weight;
  const void* bias;
  double dropout;
  const int64_t* samples;
  uint32_t layer;
  uint32_t reserved;
  int64_t tile_cells;
  void* scratch;
  int64_t scratch_bytes;
} octavo_transducer_joint;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  const float* grad_losses;
  float* encoder;
  float* predictor;
  float* weight;
  float* bias;
} octavo_transducer_joint_grads;

OCTAVO_API octavo_status octavo_transducer_joint_bytes(const octavo_transducer_args* args,
                                                       const octavo_transducer_joint* joint,
                                                       int64_t* workspace_bytes, int64_t* scratch_bytes);
OCTAVO_API octavo_status octavo_transducer_joint_loss(const octavo_transducer_args* args,
                                                      const octavo_transducer_joint* joint, float* losses);
OCTAVO_API octavo_status octavo_transducer_joint_gradient(const octavo_transducer_args* args,
                                                          const octavo_transducer_joint* joint,
                                                          const octavo_transducer_joint_grads* grads);
/* 1: a call with these numbers takes RNN-T. */
OCTAVO_API int32_t octavo_draws_rnnt(double omega, uint64_t seed, uint64_t step);

/* --- FP8 matmuls --------------------------------------------------------------------------------------
 *
 * A layer y = x . w^T has three matmuls, its passes: forward computes y, dgrad dx and wgrad dw. Each pass
 * reads two operands as FP8 codes: forward x and w, dgrad dy and the transposed w, wgrad the transposed dy
 * and the transposed x. octavo/fp8.h defines formats, recipes, scales and casts; enumerators have its values.
 */
typedef struct {
  uint32_t struct_size;
  uint32_t device_kind; /* 0 cpu, 1 cuda */
  int32_t device_index;
  uint32_t format; /* 0 hybrid, 1 e4m3, 2 e5m2 */
  uint32_t recipe; /* 0 delayed, 1 current, 2 rowwise, 3 block */
  uint32_t passes; /* the passes in FP8: 1 forward, 2 dgrad, 4 wgrad, added up */
  int64_t groups, tokens, inputs, outputs;
  uint32_t one_input;         /* nonzero: all groups have the same x, and dx is the sum over groups */
  uint32_t one_output;        /* nonzero: y is the sum over groups, and all groups have the same dy */
  uint32_t transposed_weight; /* nonzero: w is [groups, inputs, outputs] in memory, else transposed */
  uint32_t dtypes[3];         /* of x and dx, of w and dw, of y and dy */
  int64_t history;            /* delayed only: the slots of a tensor's history */
  int32_t threads;            /* CPU only; 0: all of the pool */
  uint32_t reserved;
} octavo_fp8_layer;

/* What the caller allocates for the passes of a layer. */
typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t codes[3], transposed[3]; /* bytes of the codes of x, w and dy; 0: no pass uses them */
  int64_t y[3], dx[3], dw[3];      /* groups, rows and columns. y and dx have tokens rounded up to 16 rows. */
  int64_t cast_workspace;          /* bytes that a cast of dy with bias_grad needs; 0 on the CPU */
  int64_t workspace;               /* bytes that matmuls need; 0 on the CPU */
} octavo_fp8_sizes;

/* Arrays are by operand (x, w, dy), and `to` is by pass (y, dx, dw). */
typedef struct {
  uint32_t struct_size;
  uint32_t gather;     /* nonzero: casts raise the maxima of the current step (delayed only) */
  const void* from[3]; /* the operands to cast; NULL: codes are valid already, or no pass reads them */
  void* codes[3];      /* buffers of octavo_fp8_sizes bytes, aligned to 256; NULL where those are 0 */
  void* transposed[3];
  void* to[3];      /* the results to compute; NULL: none */
  float* states;    /* delayed only: of x, w and dy; see octavo_fp8_scale_args */
  float* bias_grad; /* [outputs]: with a cast of dy, the sums of dy over tokens; NULL: not wanted */
  void* workspace;  /* may be shared by all matmuls of a stream; aligned to 256 */
  void* stream;
  void* cast_workspace; /* not shared with concurrent work; aligned to 4 */
  int64_t cast_workspace_bytes;
} octavo_fp8_run_args;

typedef struct {
  uint32_t struct_size;
  uint32_t device_kind;
  int32_t device_index;
  uint32_t algo; /* 0 max, 1 most_recent */
  int32_t margin;
  uint32_t reserved;
  float* states; /* of `tensors` tensors: two scales (1 at first) and `length` slots (0 at first) each */
  int64_t tensors, length;
  void* stream;
} octavo_fp8_scale_args;

/* Microseconds. */
typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  double plain[3], fp8[3];     /* by pass */
  double cast[3], cast_two[3]; /* by operand: one of the two orientations, and both together */
  double casts_of_weight;      /* per step and pass: less than 1 if passes share a step's codes */
} octavo_fp8_times;

/* Ok if the device has FP8 units that support the recipe's scales; else unsupported, with what the device is
 * and what to do. The CPU computes the same numbers slowly: it is supported only if the environment variable
 * OCTAVO_FP8_REFERENCE is 1, which is meant for tests. */
OCTAVO_API octavo_status octavo_fp8_supported(uint32_t device_kind, int32_t device_index, uint32_t recipe);
/* Returns why the layer cannot be in FP8, "" if it can; NULL on a bad argument. Valid until the thread's next
 * call. */
OCTAVO_API const char* octavo_fp8_why_not(const octavo_fp8_layer* layer);
/* The next two need a layer that can be in FP8. */
OCTAVO_API octavo_status octavo_fp8_layer_sizes(const octavo_fp8_layer* layer, octavo_fp8_sizes* sizes);
/* Casts the operands in `from`, then computes the results in `to`, in their order, up to the first that
 * fails; that one writes nothing. */
OCTAVO_API octavo_status octavo_fp8_run(const octavo_fp8_layer* layer, const octavo_fp8_run_args* args);
/* Ends a step: computes scales from the maxima, and starts the next slot of each history. */
OCTAVO_API octavo_status octavo_fp8_update_scales(const octavo_fp8_scale_args* args);
/* Returns the passes that are faster in FP8, casts included. */
OCTAVO_API octavo_status octavo_fp8_fastest(const octavo_fp8_times* times, uint32_t* passes);

/* --- Plans ----------------------------------------------------------------------------------------------
 *
 * What a training step will need, before it runs. octavo/plan.h is the same in C++ and says what each field
 * means. Enumerators have its values. */
typedef struct {
  uint32_t struct_size;
  int32_t compute_major, compute_minor;
  int32_t multiprocessors;
  int32_t gigabytes;
  uint32_t reserved;
  int64_t memory, context, cache;
  double bandwidth;
  double flops[5]; /* fp32, tf32, fp16, bf16, fp8 */
  double peer_bandwidth, host_bandwidth;
  char key[32], name[64];
} octavo_plan_gpu;

/* An event has no struct_size and never changes. */
typedef struct {
  int64_t id;
  int64_t bytes;  /* -1: it is given back */
  uint32_t owner; /* 0 weights, 1 gradients, 2 states, 3 master, 4 activations, 5 workspace, 6 communication,
                     7 batch */
  uint32_t reserved;
} octavo_plan_event;

typedef struct {
  uint32_t struct_size;
  uint32_t expandable_segments; /* 1: as `octavo train` sets it; 0: torch's default */
} octavo_plan_rules;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved_field;
  int64_t allocated, reserved;
  int64_t owners[8];
  int64_t rounding, peak_event;
} octavo_plan_memory;

typedef struct {
  uint32_t struct_size; /* the same in a whole array */
  uint32_t work;        /* 0 stream, 1 product */
  uint32_t precision;   /* 0 fp32, 1 tf32, 2 fp16, 3 bf16, 4 fp8 */
  uint32_t reserved;
  double bytes;
  double bandwidth; /* 0 stands for 1 */
  int64_t batch;    /* 0 stands for 1 */
  int64_t rows, columns, inner;
  int64_t launches; /* 0 stands for 1 */
} octavo_plan_kernel;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  double seconds, gpu_seconds, host_seconds;
  double by_bound[3]; /* memory, arithmetic, launch */
} octavo_plan_step;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t ranks, per_host;
  double within, between, latency;
} octavo_plan_links;

/* A bucket has no struct_size and never changes. */
typedef struct {
  double ready;
  int64_t bytes;
} octavo_plan_bucket;

/* The keys of known GPUs, newest first; NULL where index is not below the count. They live as long as the
 * library. */
OCTAVO_API int32_t octavo_plan_gpu_count(void);
OCTAVO_API const char* octavo_plan_gpu_key(int32_t index);
/* text: a key or a name ("h100", "RTX 4090"), a size ("24GB"), or "this" ("this:1": the second). */
OCTAVO_API octavo_status octavo_plan_find_gpu(const char* text, octavo_plan_gpu* gpu);
OCTAVO_API octavo_status octavo_plan_simulate(const octavo_plan_event* events, int64_t count,
                                              const octavo_plan_rules* rules, octavo_plan_memory* memory);
/* `bound`: 0 memory, 1 arithmetic, 2 launch. */
OCTAVO_API octavo_status octavo_plan_kernel_time(const octavo_plan_gpu* gpu, const octavo_plan_kernel* kernel,
                                                 double* seconds, uint32_t* bound);
OCTAVO_API octavo_status octavo_plan_step_time(const octavo_plan_gpu* gpu, const octavo_plan_kernel* kernels,
                                               int64_t count, double launch_seconds, octavo_plan_step* step);
OCTAVO_API octavo_status octavo_plan_all_reduce_seconds(const octavo_plan_links* links, int64_t bytes,
                                                        double* seconds);
OCTAVO_API octavo_status octavo_plan_exposed_seconds(const octavo_plan_links* links,
                                                     const octavo_plan_bucket* buckets, int64_t count,
                                                     double backward, double* seconds);

/* clang-format off */
/* --- The engine ---------------------------------------------------------------------------------------
 *
 * One object per optimizer. It knows every tensor of the optimizer once, and then steps any of them that have
 * a gradient. It owns no tensor: parameters, states, step counts, workspaces and norms are the caller's.
 * octavo/engine.h is the same in C++ and has the contracts in full; in short:
 *
 *   octavo_engine_create(algorithm, &engine)
 *   octavo_engine_set_group(engine, 0, switches, &options, ...)   hyper-parameters, at any time; cheap if equal
 *   octavo_engine_set(engine, handles, tensors, count)            new or moved tensors, which are checked here
 *   per step:
 *     octavo_engine_begin(engine, handles, grads, dtypes, count, with_norm, &plan)   the tensors with a gradient
 *     if (plan.number is new) allocate octavo_engine_workspace_bytes(engine, kind, index) on each device
 *     if (with_norm) octavo_engine_norm(engine, &args, parts, part_count, combine, user)
 *     octavo_engine_step(engine, &args, &report)
 *   or, with gradient release: begin (of one tensor) and octavo_engine_ready as each gradient arrives, then
 *     octavo_engine_finish.
 *
 * A failed call has written no buffer, advanced no step count and changed nothing in the engine; only where a
 * device itself fails (status 3) may a part of the step have been taken. An engine is used by one thread at a
 * time. Nothing is allocated on a GPU. Without offload nothing waits for one either, so norm, step, ready and
 * finish may be captured in a CUDA graph where the step counts are on the device. With offload the host waits
 * in a norm over gradients in host memory and in a step that does not defer. */
/* clang-format on */
typedef struct octavo_engine octavo_engine;

OCTAVO_API octavo_status octavo_engine_create(uint32_t algorithm, octavo_engine** out);
OCTAVO_API void octavo_engine_destroy(octavo_engine* engine);

/* The format that a parameter gets where `wanted` is asked for. THE rule for small parameters: below
 * min_quantized_size elements in the whole parameter (not in the shard at hand) formats with blocks become
 * fp32; fp32 and bf16 stay. The block size goes to 0 with the blocks: that is the caller's. `sharded` 1: the
 * tensor is a part of a parameter; formats with scales per axis are then an error. */
OCTAVO_API octavo_status octavo_format_for(uint32_t wanted, int64_t whole_numel, int64_t min_quantized_size,
                                           uint32_t sharded, uint32_t* format);

/* Options of a parameter group, numbered by the caller from 0 (below 2^20). Of `options` these are used: lr,
 * beta1, beta2, eps, weight_decay, momentum, dampening, nesterov, maximize, decay, seed, max_norm, own, and
 * scalar_lr, which is then memory of the given device and counts for tensors there; others use lr. The rest
 * (step, guard, threads, grad_factor, workspace, stream, other scalars) is not looked at: it belongs to a
 * step. All numbers are checked here. max_norm 0 does not clip.
 * `switches`: as octavo_group_config.switches (whose amsgrad and momentum are not asked for here). They
 * decide which moments a tensor has: where they change, the tensors of the group must be given again by
 * octavo_engine_set before they can be stepped. Where the first step fills a moment (momentum that begins
 * with the first gradient) it does so at step count 1: who switches it on for a tensor that has been stepped
 * gives it codes of zeros and sets its step count to 0. */
OCTAVO_API octavo_status octavo_engine_set_group(octavo_engine* engine, uint32_t group, uint32_t switches,
                                                 const octavo_step_args* options, uint32_t lr_device_kind,
                                                 int32_t lr_device_index);

typedef struct {
  uint32_t struct_size; /* the same in a whole array */
  uint32_t group;       /* one that was set before */
  uint32_t param_dtype, store, format;
  int32_t ndim;
  uint32_t param_device_kind;
  int32_t param_device_index;
  uint32_t state_device_kind; /* where codes, scales and residual are: the parameter's device, or the CPU */
  int32_t state_device_index;
  uint32_t norm_part; /* 0: the gradient is whole in this process; else a number of the caller for the ranks
                       * that share it. See octavo_engine_norm. */
  uint32_t step_on_device; /* 0: *step is in host memory; 1: in memory of param_device */
  int64_t numel, block_size;
  int64_t shape[8];
  int64_t whole_numel; /* of the whole parameter; 0: numel */
  int64_t offset;      /* of the first element in it */
  uint64_t id;         /* of the whole parameter: what stochastic rounding is keyed by */
  void* param;
  void* residual;
  void* codes[3];
  float* scales[3];
  int64_t* step;         /* steps taken so far, of this tensor alone */
  int64_t known_steps;   /* step_on_device: what *step holds (or will, in stream order); -1: not known; -2: as
                          * before under this handle (the buffers moved, the count's value did not change) */
  uint32_t residence;    /* 0 device; 1 host: the state is in host memory and the CPU updates it (step must be
                          * in host memory); 2 stream: in host memory, the device updates it */
  uint32_t held_in_fp32; /* gradients that octavo_engine_take keeps are added up in fp32 */
} octavo_engine_tensor;

/* Adds tensors, or replaces those of the same handle. Handles are numbers of the caller, below 2^24; dense
 * ones save memory. Every check of spec, buffers and overlap happens here (on a GPU also where each pointer
 * lies), and never again: the buffers must stay valid until they are replaced or removed. Parameters may
 * share memory with one another (views): they are then stepped one after the other, in the order given to
 * begin; those of offloaded tensors may not. No other buffer may share memory with any, and each tensor has a
 * step count of its own. Costs a pass over all tensors of the engine: give many at once. What begin has begun
 * is over. */
OCTAVO_API octavo_status octavo_engine_set(octavo_engine* engine, const uint32_t* handles,
                                           const octavo_engine_tensor* tensors, int64_t count);
/* Forgets tensors; handles that are not known are passed over. */
OCTAVO_API octavo_status octavo_engine_remove(octavo_engine* engine, const uint32_t* handles, int64_t count);

/* Tells the engine that step counts in device memory were written by somebody else (loaded, reset), and what
 * they hold; values null or -1: not known. Counts in host memory need no telling: they are read at each
 * begin. Tensors whose counts on a device are not known to be equal are stepped by calls of their own. What
 * begin has begun is over. */
OCTAVO_API octavo_status octavo_engine_set_counts(octavo_engine* engine, const uint32_t* handles,
                                                  const int64_t* values, int64_t count);

/* The handle of the tensor that caused this engine's last failing call; -1: no tensor caused it. */
OCTAVO_API int64_t octavo_engine_failed_tensor(const octavo_engine* engine);

typedef struct {
  uint32_t struct_size;
  uint32_t fresh;  /* 1: this call made the plan */
  uint64_t number; /* of the plan, from 1: as long as it stays the same, so does what workspaces need */
  int64_t cohorts; /* native calls that a step makes */
} octavo_engine_plan;

/* The tensors that have a gradient now, and their gradients (dtypes: octavo dtype numbers, one byte each;
 * dense, in the parameter's memory order, on the parameter's device). Checked: handles, null, alignment,
 * dtypes. The place of a gradient in device memory is not asked of the driver. Gradients are read until the
 * step's work is done and must not be written by it. The order of handles is the order of the norm's sum.
 * with_norm 1: octavo_engine_norm (or ready with a norm) will follow. Plans are kept by (handles, dtypes) and
 * used again. count 0 is allowed: nothing is stepped. `out` may be null. */
OCTAVO_API octavo_status octavo_engine_begin(octavo_engine* engine, const uint32_t* handles,
                                             const void* const* grads, const uint8_t* dtypes, int64_t count,
                                             uint32_t with_norm, octavo_engine_plan* out);

/* Bytes of workspace that norm, step, ready and finish need now on a device (0: none; also for devices that
 * do not take part). Grow-only workspaces are the simple use: one per device, aligned to 16, of this engine
 * alone, used on one stream after the other in their order. After a CUDA graph was captured with a workspace
 * the graph owns it: keep it, and take another one for steps outside (or pass the same: tables are then
 * written anew at every step as long as the graph exists). */
OCTAVO_API int64_t octavo_engine_workspace_bytes(const octavo_engine* engine, uint32_t device_kind,
                                                 int32_t device_index);

/* One device of a step: all of its pointers are memory of the device. */
typedef struct {
  uint32_t struct_size; /* the same in a whole array */
  uint32_t device_kind;
  int32_t device_index;
  uint32_t reserved;
  void* stream; /* cuda: the cudaStream_t to work on */
  void* workspace;
  int64_t workspace_bytes;
  const float* loss_scale;  /* gradients are divided by it, besides grad_factor; null: not */
  const float* found_inf;   /* not zero: the step is skipped; null: not */
  octavo_device_norm* norm; /* the norm over all gradients, of all devices and ranks: see norm, ready; null:
                             * no clipping, no guard */
  octavo_device_report* report; /* receives what happened; null: nobody asks. Also written where no tensor of
                                 * this device is stepped: what the norm says. */
  void* staging; /* aligned to 256, of this engine alone: octavo_engine_staging_bytes. Used after calls have
                  * returned: wait for all weights and gradients before it is freed or replaced */
  int64_t staging_bytes;
} octavo_engine_device;

/* Where an algorithm measures whole tensors before it updates them (octavo_algorithm_passes is 2) and ranks
 * share tensors: adds `count` sums, in the device's memory, over the ranks of `part` (not 0), in place, on
 * the device's stream. Called once per cohort, in the same order on all ranks if the same tensors have
 * gradients there. Returns 0, or another number: the step fails then, and a part of it may have been taken.
 */
typedef int32_t (*octavo_engine_add_sums)(void* user, uint32_t device_kind, int32_t device_index,
                                          uint32_t part, double* sums, int64_t count);

typedef struct {
  uint32_t struct_size;
  uint32_t guard;     /* a non-finite gradient anywhere skips the step whole; needs norms */
  int32_t threads;    /* CPU; 0: the pool's size */
  uint32_t defer;     /* offloaded tensors may be written after step has returned: see octavo_engine_wait */
  double grad_factor; /* multiplies every gradient; 0 stands for 1 */
  const octavo_engine_device* devices; /* every device that a begun tensor is on; others may be there, too */
  int64_t device_count;
  octavo_engine_add_sums add_sums; /* null: an error where it is needed */
  void* sums_user;
} octavo_engine_args;

/* Combines norms: see norm and finish. Returns 0, or another number for a failure of the caller's. */
typedef int32_t (*octavo_engine_combine)(void* user);

/* The norms of the begun gradients, by device and norm part, each into its buffer. */
typedef struct {
  uint32_t struct_size; /* the same in a whole array */
  uint32_t part;
  uint32_t device_kind;
  int32_t device_index;
  octavo_device_norm* out; /* memory of the device; zeros where the part has no gradient here */
} octavo_engine_norm_part;

/* Every (device, norm_part) of a begun tensor must be listed. Parts of which other ranks may have gradients
 * are listed although this rank has none, in the same order on every rank. With one part, of number 0, that
 * is all: let its `out` be args.devices[0].norm. Otherwise `combine` is called once, after the work was
 * queued: it sums each part over its ranks and all parts into the `norm` of every device (l2: root of the sum
 * of squares; max: largest; nonfinite: sum), on the streams of args. */
OCTAVO_API octavo_status octavo_engine_norm(octavo_engine* engine, const octavo_engine_args* args,
                                            const octavo_engine_norm_part* parts, int64_t part_count,
                                            octavo_engine_combine combine, void* user);

/* One step of the begun tensors. Clips by args.devices[].norm where the group's max_norm says so; with guard
 * the norm's count of non-finite elements decides. Host step counts are advanced where the step was taken. On
 * a GPU with guard or found_inf only the device knows that, so the step counts must be there, too
 * (step_on_device), and report->pending is 1 (the same while a graph is captured). `report` may be null. */
OCTAVO_API octavo_status octavo_engine_step(octavo_engine* engine, const octavo_engine_args* args,
                                            octavo_step_report* report);

/* Gradient release: steps the begun tensors (as a rule one, of one device) before the other gradients are
 * known. They are clipped by the norm of the previous whole step, args.devices[].norm (zeros before the first
 * finish: not clipped), and guarded by the count of their own non-finite elements. `own`: two
 * octavo_device_norms of the caller in the tensors' device memory, untouched until finish; own[0] receives
 * the norm of these gradients, own[1] the norm that clips. null: no norm is taken (no guard, no clipping).
 * Where norm_part is not 0 `combine` is called to sum own[0] over the ranks. A tensor that was ready already
 * since the last finish is an error. */
OCTAVO_API octavo_status octavo_engine_ready(octavo_engine* engine, const octavo_engine_args* args,
                                             octavo_device_norm* own, octavo_engine_combine combine,
                                             void* user, octavo_step_report* report);
/* Ends a step of gradient release. parts: one per device (part 0); `out` receives the norm over the gradients
 * that were ready there, in the order of handles; with several `combine` makes each of them the norm over
 * all. Then every args.devices[].norm takes it for the next step (l2 only where it is finite), and reports
 * say whether any tensor was skipped. Workspaces: octavo_engine_workspace_bytes, asked again before.
 * part_count 0: no norms; only the list of ready tensors is cleared. Offloaded tensors: with args.defer ready
 * does not order the stream behind the weight, and finish not behind all of them. octavo_engine_forget_ready
 * clears it without ending a step (other states were loaded). */
OCTAVO_API octavo_status octavo_engine_finish(octavo_engine* engine, const octavo_engine_args* args,
                                              const octavo_engine_norm_part* parts, int64_t part_count,
                                              octavo_engine_combine combine, void* user);
OCTAVO_API void octavo_engine_forget_ready(octavo_engine* engine);

/* --- Offload: octavo/engine.h and octavo/offload.h are the same in C++ and have the contracts in full --- */

/* Gradients of offloaded tensors of one device go to host memory, behind what is queued on `stream`, and are
 * added to what was taken since the tensors' last step. begin takes null for such a gradient. They are read
 * until octavo_engine_wait(gradients) says so. */
OCTAVO_API octavo_status octavo_engine_take(octavo_engine* engine, const uint32_t* handles,
                                            const void* const* grads, const uint8_t* dtypes, int64_t count,
                                            uint32_t device_kind, int32_t device_index, void* stream);
OCTAVO_API uint32_t octavo_engine_holds(const octavo_engine* engine, uint32_t handle);
/* Forgets what was taken; count 0: of all tensors. */
OCTAVO_API octavo_status octavo_engine_drop(octavo_engine* engine, const uint32_t* handles, int64_t count);
/* Orders `stream` behind the weights (what 0) of these tensors, or behind the reads of their gradients (1);
 * count 0: of all. On the CPU it returns when that is so. Errors of work that was deferred come from here. */
OCTAVO_API octavo_status octavo_engine_wait(octavo_engine* engine, const uint32_t* handles, int64_t count,
                                            uint32_t what, uint32_t device_kind, int32_t device_index,
                                            void* stream);
/* Parameters were written by somebody else: their copies in host memory are made again (way 0), or the
 * parameters are made from the copies (1); count 0: of all tensors whose residence is host. */
OCTAVO_API octavo_status octavo_engine_refresh(octavo_engine* engine, const uint32_t* handles, int64_t count,
                                               uint32_t way, uint32_t device_kind, int32_t device_index,
                                               void* stream);
/* The copy of a parameter whose residence is host; null: there is none (yet: the first step, or refresh,
 * makes it). */
OCTAVO_API void* octavo_engine_host_param(const octavo_engine* engine, uint32_t handle);
/* The host waits until nothing is under way. */
OCTAVO_API octavo_status octavo_engine_synchronize(octavo_engine* engine);
/* The order of the next forward pass, in which offloaded tensors are updated. Where it is another than
 * before, what begin has begun is over. */
OCTAVO_API octavo_status octavo_engine_set_order(octavo_engine* engine, const uint32_t* handles,
                                                 int64_t count);
OCTAVO_API int64_t octavo_engine_staging_bytes(const octavo_engine* engine, uint32_t device_kind,
                                               int32_t device_index);
/* Where the engine gets host memory (aligned to 64; null: there is none). Without: octavo_host_alloc. */
typedef void* (*octavo_host_allocate)(void* user, int64_t bytes);
typedef void (*octavo_host_release)(void* user, void* data);
OCTAVO_API octavo_status octavo_engine_set_host_memory(octavo_engine* engine, octavo_host_allocate allocate,
                                                       octavo_host_release release, void* user);
OCTAVO_API int64_t octavo_engine_host_bytes(const octavo_engine* engine);

typedef struct {
  int64_t numel;
  int64_t state_bytes; /* of codes, scales and residual */
} octavo_residence_tensor;
/* Which tensors' states leave the device, one number of octavo_engine_tensor.residence each: the one rule of
 * all adapters. `wanted` is the residence of those that leave; ratio: of all bytes that leave (1: all);
 * budget: bytes that may stay instead, or -1. */
OCTAVO_API octavo_status octavo_choose_residences(const octavo_residence_tensor* tensors, int64_t count,
                                                  uint32_t wanted, int64_t min_size, double ratio,
                                                  int64_t budget, uint32_t* out);

/* Zeroed host memory of exactly this size in pages, pinned (where `pin` is 1 and that works: *pinned; else
 * octavo_last_error says why not, and the call succeeds all the same). Freed by octavo_host_free. */
OCTAVO_API octavo_status octavo_host_alloc(int64_t bytes, uint32_t pin, void** out, uint32_t* pinned);
OCTAVO_API void octavo_host_free(void* data);
/* Bytes of host memory that this process may still allocate; 0 also when the call fails. */
OCTAVO_API int64_t octavo_host_room(void);
/* Notes copies, CPU work and kernels of offloaded steps from now on (0: no longer); writes them as Chrome
 * trace JSON and forgets them. */
OCTAVO_API void octavo_offload_trace(uint32_t on);
/* A stretch of the caller's own, while a trace is on: the row it is shown in, its name, and its ends in
 * microseconds of the monotonic clock (CLOCK_MONOTONIC). */
OCTAVO_API octavo_status octavo_offload_trace_note(const char* row, const char* label, double begin,
                                                   double end);
OCTAVO_API octavo_status octavo_offload_trace_write(const char* path);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* OCTAVO_OCTAVO_H_ */
