/* The C ABI: steps, norms, layouts, converters and the inspector over plain structs, for engines and other
 * languages.
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
/* The implementation in use ("avx2"), or NULL with an error (a bad OCTAVO_FORCE_IMPL). */
OCTAVO_API const char* octavo_implementation(void);
OCTAVO_API octavo_status octavo_force_implementation(const char* name);
OCTAVO_API octavo_status octavo_set_default_threads(int32_t threads);
OCTAVO_API int32_t octavo_default_threads(void);

/* Names to numbers: kind is "dtype", "state", "store" or "optimizer". */
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
/* How many moments the algorithm keeps with these switches, and how often a step reads the gradients; -1
 * where it does not have that combination. */
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

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* OCTAVO_OCTAVO_H_ */
