/* The C ABI of Octavo: descriptions, codecs, the engine, offload, dropout, the transducer loss, FP8 matmuls
 * and memory and time forecasts, for engines written in C and for other languages.
 *
 * Errors. A function that can fail returns an octavo_status, and on failure leaves a message for the calling
 * thread in octavo_last_error(). A failed call has written no buffer and no result, except where the
 * function's comment says otherwise. No C++ exception leaves a function. A function that returns another type
 * shows a failure by its result:
 * - -1 where it returns the size of a buffer, and from octavo_algorithm_slots, octavo_algorithm_passes and
 *   octavo_engine_failed_tensor, which also return -1 without a failure, as described there;
 * - 0 where it returns another number;
 * - NULL where it returns a pointer.
 *
 * Structs. Where the first field is struct_size, the caller sets it to sizeof the struct; the other fields
 * may be zero unless their comment says otherwise. The library accepts exactly the size that it was built
 * with. A struct without struct_size lies in device memory, in a large array or in another struct, and is not
 * checked. Any change of a struct or of a function raises OCTAVO_ABI_VERSION: a program that loads the
 * library at run time compares octavo_abi_version() with it once. Enumerators have the values of
 * octavo/types.h.
 *
 * Memory. The caller owns all memory that it passes, and the library owns what it returns. Pointers are
 * aligned to their element unless a comment says more.
 *
 * Devices. device_kind is 0 for the CPU and 1 for CUDA; device_index is 0 for the CPU. `stream` is the
 * cudaStream_t to work on, and NULL on the CPU, where a function returns when its work is done. A call on a
 * GPU makes that GPU current for the thread, and restores the previous one only if this process has a CUDA
 * context there.
 *
 * Threads. `threads` is the number of CPU threads to use; 0 uses all of the library's pool.
 *
 * scripts/generate_abi reads this file and writes Python's declarations. It names a declaration that it
 * cannot read.
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
/* The message of this thread's last failure, "" if none. It is valid until the thread's next failing call. */
OCTAVO_API const char* octavo_last_error(void);

/* The name of the CPU implementation in use, for example "avx2". It is chosen at first use: the fastest that
 * the CPU supports, or the one that the environment variable OCTAVO_FORCE_IMPL names. */
OCTAVO_API const char* octavo_implementation(void);
/* Uses another implementation from now on, for tests; "" or NULL returns to the choice above. */
OCTAVO_API octavo_status octavo_force_implementation(const char* name);

/* Returns the number of a name. `kind` is "dtype", "state", "store", "optimizer", "reduction" (of the
 * transducer loss), "fp8_format", "fp8_recipe", "amax_compute_algo" or "activation". */
OCTAVO_API octavo_status octavo_parse(const char* kind, const char* name, uint32_t* out);

/* --- Descriptions of the algorithms and state formats --------------------------------------------------
 *
 * All strings live as long as the library. */

typedef struct {
  uint32_t struct_size;
  uint32_t number;           /* the number that octavo_engine_create takes */
  const char* name;          /* "adamw" */
  const char* title;         /* "AdamW" */
  uint32_t family;           /* algorithms with the same formula have the same family */
  uint32_t decay;            /* 1: weight decay is added to the gradient; 2: it is applied to the parameter */
  int32_t options;           /* the number of options: see octavo_algorithm_option */
  uint32_t update_is_rate;   /* 1: the size of an update is about the learning rate */
  uint32_t first_step_fills; /* 1: step 1 initializes the moments, so a new moment must begin at step 1 */
  uint32_t excluded_formats; /* bit i is set if the algorithm does not support the state format of number i */
} octavo_algorithm_info;

/* One hyper-parameter. Options are in the order of torch's arguments (or of bitsandbytes'). */
typedef struct {
  uint32_t struct_size;
  uint32_t range;    /* 0 any finite number, 1 at least 0, 2 above 0, 3 at least 0 and below 1, 4 a flag */
  const char* name;  /* "beta1" */
  const char* tuple; /* "betas": the tuple option of torch that contains it; "" if none */
  double value;      /* the default */
  int32_t offset; /* its byte offset in octavo_step_args, where it is a double, or a uint32_t if it is a flag;
                   * -1: it is not there, and only its switch bit counts */
  int32_t switch_bit; /* the bit of `switches` to set where the option is not 0, because the option changes
                       * which moments exist; -1: it does not */
  uint32_t optional;  /* 1: it may be None in Python, which is 0 here */
  uint32_t reserved;
} octavo_option_info;

typedef struct {
  uint32_t struct_size;
  uint32_t moment;  /* 0 first, 1 second */
  const char* name; /* torch's name of the state, for example "exp_avg" */
  const char* peer; /* bitsandbytes' name of it */
} octavo_slot_info;

OCTAVO_API int32_t octavo_algorithm_count(void);
/* `index` goes from 0 to octavo_algorithm_count() - 1, in the order of numbers. It is not the number. */
OCTAVO_API octavo_status octavo_algorithm(int32_t index, octavo_algorithm_info* out);
OCTAVO_API octavo_status octavo_algorithm_option(int32_t index, int32_t option, octavo_option_info* out);
/* The number of moments that the algorithm keeps with these switches, and the number of times that a step
 * reads the gradients. Both are -1 where the index does not exist or the algorithm does not support the
 * switches; that leaves octavo_last_error() unchanged. */
OCTAVO_API int32_t octavo_algorithm_slots(int32_t index, uint32_t switches);
OCTAVO_API int32_t octavo_algorithm_passes(int32_t index, uint32_t switches);
OCTAVO_API octavo_status octavo_algorithm_slot(int32_t index, uint32_t switches, int32_t slot,
                                               octavo_slot_info* out);

/* How a state format stores one moment. */
typedef struct {
  uint32_t bits;     /* bits of a code */
  uint32_t scale;    /* 0 no scales, 1 one for each block, 2 one for each slice along each axis */
  uint32_t rounding; /* of a step: 0 to nearest, 1 stochastic */
  int32_t zero_code; /* the code that means zero with any scale; -1: there is none */
  /* The element type of the codes. "float32", "bfloat16", "uint8", "float8_e4m3fn" and "float8_e5m2" have one
   * element for each parameter element; "packed" codes are a string of bits. */
  const char* element;
} octavo_moment_format;

typedef struct {
  uint32_t struct_size;
  uint32_t number;       /* the number that `format` fields take */
  const char* name;      /* "8bit"; octavo_parse accepts other spellings too */
  int64_t default_block; /* in elements; 0: the format has no blocks */
  octavo_moment_format moment[2];
  uint32_t of_vectors; /* the format that tensors of fewer than two dimensions get; it differs from `number`
                        * where scales are along axes */
  uint32_t reserved;
} octavo_format_info;

OCTAVO_API int32_t octavo_format_count(void);
/* `index` goes from 0 to octavo_format_count() - 1, in the order of numbers. */
OCTAVO_API octavo_status octavo_format(int32_t index, octavo_format_info* out);

/* Returns the format of a parameter for which `wanted` was requested. Small parameters keep fp32 states:
 * where the complete parameter (not the local shard) has fewer than min_quantized_size elements, formats with
 * blocks become fp32. The caller then sets the block size to 0. `sharded` 1: the tensor is a part of a
 * parameter, for which formats with scales along axes are an error. */
OCTAVO_API octavo_status octavo_format_for(uint32_t wanted, int64_t whole_numel, int64_t min_quantized_size,
                                           uint32_t sharded, uint32_t* format);

typedef struct {
  uint32_t struct_size;
  uint32_t param_dtype;
  uint32_t store;  /* how the master weight is stored: octavo_parse("store", ...) */
  uint32_t format; /* the state format */
  int32_t ndim;    /* 0: one dimension of numel elements */
  uint32_t reserved;
  int64_t numel;
  int64_t block_size; /* 0: the format's default */
  int64_t shape[8]; /* only formats with scales along axes use it; its product is numel where ndim is not 0 */
} octavo_tensor_spec;

/* The sizes of a tensor's state buffers. */
typedef struct {
  uint32_t struct_size;
  int32_t slots;          /* the number of moments */
  int64_t codes_bytes[3]; /* bytes of each moment's codes */
  int64_t scales[3];      /* the number of each moment's scales */
  int64_t residual_bytes; /* bytes of the master weight's residual; 0: `store` needs none */
} octavo_tensor_layout;

/* `switches`: bit octavo_option_info.switch_bit of each option that is on. */
OCTAVO_API octavo_status octavo_layout(uint32_t algorithm, uint32_t switches, const octavo_tensor_spec* spec,
                                       octavo_tensor_layout* out);

/* --- Codecs: moments to and from fp32, on the CPU ------------------------------------------------------ */

typedef struct {
  uint32_t struct_size;
  uint32_t moment; /* 0 first, 1 second */
  uint32_t format;
  int32_t ndim;
  int64_t numel;
  int64_t block_size;
  int64_t shape[8];
} octavo_moment_spec;

/* The sizes of a moment's buffers: bytes of codes, and the number of scales (0: `scales` may be NULL). */
OCTAVO_API octavo_status octavo_moment_layout(const octavo_moment_spec* spec, int64_t* codes_bytes,
                                              int64_t* scales);
/* Converts `numel` fp32 values to codes and scales, rounded to nearest, and back. */
OCTAVO_API octavo_status octavo_encode(const octavo_moment_spec* spec, const float* values, void* codes,
                                       float* scales);
OCTAVO_API octavo_status octavo_decode(const octavo_moment_spec* spec, const void* codes, const float* scales,
                                       float* values);

/* clang-format off */
/* --- The engine ---------------------------------------------------------------------------------------
 *
 * One engine per optimizer. Register each tensor of the optimizer once; each step then updates those that
 * have a gradient. octavo/engine.hpp is a C++17 wrapper. In short:
 *
 *   octavo_engine_create(algorithm, &engine)
 *   octavo_engine_set_group(engine, 0, switches, &options, ...)   hyper-parameters; cheap if they are equal
 *   octavo_engine_set(engine, handles, tensors, count)            registers new or moved tensors; checks them
 *
 *   for each step:
 *     octavo_engine_begin(engine, handles, grads, dtypes, count, with_norm, &plan)
 *     if plan.number is new: allocate octavo_engine_workspace_bytes(engine, kind, index) on each device
 *     if with_norm: octavo_engine_norm(engine, &args, parts, part_count, combine, user)
 *     octavo_engine_step(engine, &args, &report)
 *
 *   or, with gradient release, for each gradient as it arrives:
 *     octavo_engine_begin(engine, &handle, &grad, &dtype, 1, with_norm, &plan)
 *     octavo_engine_ready(engine, &args, own, combine, user, &report)
 *   and at the end of the step:
 *     octavo_engine_finish(engine, &args, parts, part_count, combine, user)
 *
 * Ownership: the engine owns no tensor. Parameters, states, step counts, workspaces, norms and reports belong
 * to the caller, and stay valid until they are replaced or removed (on a GPU, in stream order).
 *
 * Errors: a failed call has written no buffer, advanced no step count and changed nothing in the engine. There
 * are three exceptions. Where a device or host memory itself fails (status 3), a part of the step may have been
 * applied, or a part of the gradients offloaded. Where `combine` fails, norms may have been written. Where
 * add_sums fails, a part of the step may have been applied.
 *
 * Threads and streams: one thread at a time uses an engine. The engine allocates nothing on a GPU. Without
 * offload no call waits for a GPU, so norm, step, ready and finish can be captured in a CUDA graph if the step
 * counts are on the device. With offload the host waits in a norm over gradients in host memory, in a step that
 * does not defer, in begin and refresh for earlier deferred steps of residence 1, and in set, remove and
 * set_order for all queued work. */
/* clang-format on */
typedef struct octavo_engine octavo_engine;

OCTAVO_API octavo_status octavo_engine_create(uint32_t algorithm, octavo_engine** out);
/* Destroys the engine; NULL is allowed. */
OCTAVO_API void octavo_engine_destroy(octavo_engine* engine);

/* The hyper-parameters of a group. Initialize with octavo_step_args_init. */
typedef struct {
  uint32_t struct_size;
  uint32_t nesterov;
  uint32_t maximize;
  uint32_t decay; /* 0: as the optimizer's name says; 1: added to the gradient; 2: applied to the parameter */
  uint64_t seed;  /* of stochastic rounding */
  double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
  double clip_grad_norm;  /* gradients are clipped to this global norm; 0: no clipping */
  const float* scalar_lr; /* in device memory: replaces lr for the tensors on that device; NULL: lr counts */
  double own[8];          /* options of single algorithms, at octavo_option_info.offset */
} octavo_step_args;

/* Sets the defaults (lr 1e-3, betas 0.9 and 0.999, eps 1e-8, all others 0). Set struct_size before. */
OCTAVO_API octavo_status octavo_step_args_init(octavo_step_args* args);

/* Sets the options of a group. The caller numbers groups from 0 (below 2^20). All numbers are checked here.
 * scalar_lr, if any, is memory of the given device.
 * `switches`: bit octavo_option_info.switch_bit of each option that is on. Switches decide which moments
 * exist: after a change, register the tensors of the group again (octavo_engine_set) before they are stepped.
 * Where octavo_algorithm_info.first_step_fills is 1 the first step initializes a moment at step count 1. So
 * to enable such a moment for a tensor that has already been stepped, zero its codes and set its step count
 * to 0. */
OCTAVO_API octavo_status octavo_engine_set_group(octavo_engine* engine, uint32_t group, uint32_t switches,
                                                 const octavo_step_args* options, uint32_t lr_device_kind,
                                                 int32_t lr_device_index);

/* One tensor: a complete parameter, or the local shard of one. Required: struct_size, numel, param (where
 * numel is not 0), step, and the buffers to which octavo_layout gives a size. Zero bytes are the initial
 * state. */
typedef struct {
  uint32_t struct_size;
  uint32_t group; /* a group that octavo_engine_set_group has set */
  uint32_t param_dtype, store, format;
  int32_t ndim;
  uint32_t param_device_kind; /* the device of the parameter and its gradient */
  int32_t param_device_index;
  uint32_t state_device_kind; /* the device of codes, scales and residual: the parameter's, or the CPU */
  int32_t state_device_index;
  uint32_t norm_part; /* 0: this process has the complete gradient; else the caller's number for the set of
                       * ranks that share it: see octavo_engine_norm */
  uint32_t step_on_device; /* 0: *step is in host memory; 1: in memory of the parameter's device */
  int64_t numel, block_size;
  int64_t shape[8];
  int64_t whole_numel; /* elements of the complete parameter; 0: numel */
  int64_t offset;      /* of this tensor's first element in the complete parameter */
  uint64_t id;         /* of the complete parameter; it keys stochastic rounding */
  void* param;
  void* residual;
  void* codes[3];
  float* scales[3];
  int64_t* step;       /* the number of steps so far, of this tensor only */
  int64_t known_steps; /* with step_on_device, the value of *step (in stream order); -1: unknown; -2:
                        * unchanged since this handle was last registered */
  /* 0: the state is on the device. 1: the state is in host memory, and the CPU updates it (*step must be in
   * host memory too). 2: the state is in host memory, and is streamed to the device for the update. */
  uint32_t residence;
  uint32_t held_in_fp32; /* octavo_engine_take accumulates gradients in fp32 instead of their own dtype */
} octavo_engine_tensor;

/* Registers tensors, or replaces those with the same handle. Handles are the caller's numbers below 2^24;
 * dense handles use less memory. Specs, buffers and overlaps are checked here (on a GPU also the memory of
 * each pointer) and not again, so the buffers must stay valid until they are replaced or removed. Parameters
 * may share memory (views): they are then stepped one after the other, in the order given to begin.
 * Parameters of offloaded tensors may not share memory, and neither may any other buffer. Each tensor has its
 * own step count. Tensors whose device step counts are not known to be equal are stepped by separate kernel
 * launches. The call costs a pass over all tensors of the engine: register many at once. It invalidates the
 * current begin. */
OCTAVO_API octavo_status octavo_engine_set(octavo_engine* engine, const uint32_t* handles,
                                           const octavo_engine_tensor* tensors, int64_t count);
/* Removes tensors and ignores unregistered handles. Invalidates the current begin. */
OCTAVO_API octavo_status octavo_engine_remove(octavo_engine* engine, const uint32_t* handles, int64_t count);

/* The handle of the tensor that caused the last failure of this engine; -1: no tensor did. */
OCTAVO_API int64_t octavo_engine_failed_tensor(const octavo_engine* engine);

typedef struct {
  uint32_t struct_size;
  uint32_t fresh;  /* 1: this call made the plan */
  uint64_t number; /* identifies the plan, from 1: the workspace sizes are the same while it is the same */
  int64_t cohorts; /* the number of native calls of a step */
} octavo_engine_plan;

/* Begins a step of the tensors that have a gradient. Each gradient is dense, in the parameter's memory order,
 * on the parameter's device; `dtypes` has one byte per gradient, its dtype number. Handles, null pointers,
 * alignment and dtypes are checked, but not the memory of a device pointer. Gradients are read until the work
 * of the step is done, and must not overlap what it writes. The norm is summed in the order of `handles`.
 * with_norm 1: octavo_engine_norm, or ready with a norm, will follow. Plans are cached by (handles, dtypes).
 * count 0 is allowed and steps nothing; `out` may be NULL. */
OCTAVO_API octavo_status octavo_engine_begin(octavo_engine* engine, const uint32_t* handles,
                                             const void* const* grads, const uint8_t* dtypes, int64_t count,
                                             uint32_t with_norm, octavo_engine_plan* out);

/* Bytes of workspace that norm, step, ready and finish need on a device now; 0: none. Simple use: one
 * workspace per device and engine, aligned to 16, that only grows and is used in stream order. A workspace
 * that was captured in a CUDA graph belongs to the graph: keep it, and use another one outside (or the same,
 * at the cost of writing its tables again at every step as long as the graph exists). */
OCTAVO_API int64_t octavo_engine_workspace_bytes(const octavo_engine* engine, uint32_t device_kind,
                                                 int32_t device_index);

/* Written by a device into its own memory. */
typedef struct {
  uint8_t skipped; /* 1: the step was skipped */
  uint8_t pending; /* 0 once the report is written */
  uint8_t reserved[6];
  int64_t nonfinite; /* the number of gradient elements that are not finite */
} octavo_device_report;

typedef struct {
  double l2;
  double max; /* the largest absolute value */
  int64_t nonfinite;
} octavo_device_norm;

/* One device of a step. All pointers are memory of the device. */
typedef struct {
  uint32_t struct_size;
  uint32_t device_kind;
  int32_t device_index;
  uint32_t reserved;
  void* stream;
  void* workspace;
  int64_t workspace_bytes;
  const float* loss_scale;  /* gradients are divided by it, besides grad_factor; NULL: they are not */
  const float* found_inf;   /* not 0: the step is skipped; NULL: no check */
  octavo_device_norm* norm; /* the norm over all gradients of all devices and ranks, as norm and ready write
                             * it; NULL: no clipping and no
                             * skip_nonfinite */
  octavo_device_report* report; /* receives the outcome, also where no tensor of this device is stepped; may
                                 * be NULL */
  void* staging; /* for offload, aligned to 256, used by this engine only; octavo_engine_staging_bytes gives
                  * its size. It is in use after calls have returned: wait for all weights and gradients
                  * before you free or replace it. */
  int64_t staging_bytes;
} octavo_engine_device;

/* Needed where an algorithm reads the gradients twice (octavo_algorithm_passes is 2) and ranks share tensors.
 * Adds `count` sums in the device's memory over the ranks of `part` (not 0), in place, on the device's
 * stream. It is called once per cohort, in the same order on all ranks if the same tensors have gradients
 * there. Returns 0, or another number to fail the step, of which a part may then have been applied. */
typedef int32_t (*octavo_engine_add_sums)(void* user, uint32_t device_kind, int32_t device_index,
                                          uint32_t part, double* sums, int64_t count);

typedef struct {
  uint32_t struct_size;
  uint32_t skip_nonfinite; /* 1: a gradient that is not finite skips the complete step; needs a norm */
  int32_t threads;
  uint32_t defer; /* 1: offloaded tensors may be updated after step has returned: see octavo_engine_wait */
  double grad_factor;                  /* multiplies every gradient; 0 stands for 1 */
  const octavo_engine_device* devices; /* every device of a begun tensor; others are allowed */
  int64_t device_count;
  octavo_engine_add_sums add_sums; /* NULL: an error where it is needed */
  void* sums_user;                 /* passed to add_sums */
} octavo_engine_args;

/* Combines norms: see norm and finish. Returns 0, or another number to fail the call. */
typedef int32_t (*octavo_engine_combine)(void* user);

/* The norm of the begun gradients of one device and norm part. */
typedef struct {
  uint32_t struct_size;
  uint32_t part;
  uint32_t device_kind;
  int32_t device_index;
  octavo_device_norm* out; /* memory of the device; receives zeros where the part has no gradient here */
} octavo_engine_norm_part;

/* Computes norms. List every (device, norm_part) of a begun tensor, and also the parts of which other ranks
 * may have gradients, in the same order on every rank. For a single part of number 0 pass
 * args.devices[0].norm as its `out`, and no `combine`. Otherwise `combine` is called once, after the work was
 * queued: it sums each part over its ranks, and all parts into the `norm` of every device (l2: the root of
 * the sum of squares; max: the largest; nonfinite: the sum), on the streams of args. */
OCTAVO_API octavo_status octavo_engine_norm(octavo_engine* engine, const octavo_engine_args* args,
                                            const octavo_engine_norm_part* parts, int64_t part_count,
                                            octavo_engine_combine combine, void* user);

typedef struct {
  uint32_t struct_size;
  uint32_t skipped;
  int64_t nonfinite;
  uint32_t pending; /* 1: the outcome is not known yet; octavo_engine_device.report receives it */
  uint32_t reserved;
} octavo_step_report;

/* Steps the begun tensors. args.devices[].norm clips where the group's clip_grad_norm is not 0. Its count of
 * elements that are not finite decides with skip_nonfinite. Step counts in host memory are advanced if the
 * step was applied. On a GPU with skip_nonfinite or found_inf only the device knows that: the step counts
 * must then be there (step_on_device; those of residence 1 stay in host memory), and report->pending is 1,
 * also during the capture of a graph. `report` may be NULL. */
OCTAVO_API octavo_status octavo_engine_step(octavo_engine* engine, const octavo_engine_args* args,
                                            octavo_step_report* report);

/* Gradient release: steps the begun tensors (usually one; all on one device) before the other gradients
 * exist. The norm of the previous step, args.devices[].norm, clips them (zeros before the first finish: no
 * clipping), and the count of their own elements that are not finite decides with skip_nonfinite. `own` is an
 * array of two octavo_device_norms in the device's memory that the caller leaves untouched until finish:
 * own[0] receives the norm of these gradients, own[1] the norm that clips. NULL: no norm is computed (no
 * skip_nonfinite, no clipping). Where norm_part is not 0 `combine` is called to sum own[0] over the ranks. A
 * tensor that was already ready since the last finish is an error. Offloaded tensors: the stream is ordered
 * after the updated weight, unless args.defer is 1. */
OCTAVO_API octavo_status octavo_engine_ready(octavo_engine* engine, const octavo_engine_args* args,
                                             octavo_device_norm* own, octavo_engine_combine combine,
                                             void* user, octavo_step_report* report);
/* Ends a step of gradient release. `parts` has one entry per device, with part 0: `out` receives the norm
 * over the gradients that were ready there, in the order of handles. With several, `combine` makes each of
 * them the norm over all. Every args.devices[].norm then takes it for the next step (only where l2 is
 * finite), and reports say whether a tensor was skipped. Query octavo_engine_workspace_bytes again before the
 * call. part_count 0: no norms; only the list of ready tensors is cleared. Without args.defer the streams are
 * ordered after the weights of all offloaded tensors. */
OCTAVO_API octavo_status octavo_engine_finish(octavo_engine* engine, const octavo_engine_args* args,
                                              const octavo_engine_norm_part* parts, int64_t part_count,
                                              octavo_engine_combine combine, void* user);
/* Clears the list of ready tensors without ending a step, for example after a checkpoint was loaded. */
OCTAVO_API void octavo_engine_forget_ready(octavo_engine* engine);

/* --- Offload: states, gradients and updates in host memory ----------------------------------------------
 *
 * The caller allocates the states in host memory (octavo_host_alloc), and the engine what it needs for
 * gradients and weights. In drop, wait and refresh count 0 stands for all tensors. */

/* Copies gradients of offloaded tensors, all on one device, to host memory, after the work that is queued on
 * `stream`, and adds them to those since the tensor's last step. Pass NULL to begin for such a gradient. The
 * gradients are read until octavo_engine_wait(..., 1, ...) says otherwise. */
OCTAVO_API octavo_status octavo_engine_take(octavo_engine* engine, const uint32_t* handles,
                                            const void* const* grads, const uint8_t* dtypes, int64_t count,
                                            uint32_t device_kind, int32_t device_index, void* stream);
/* Returns 1 if a gradient of the tensor is in host memory. */
OCTAVO_API uint32_t octavo_engine_holds(const octavo_engine* engine, uint32_t handle);
/* Discards gradients in host memory. */
OCTAVO_API octavo_status octavo_engine_drop(octavo_engine* engine, const uint32_t* handles, int64_t count);
/* Orders `stream` after the updates of the tensors' weights (`what` 0), or after the reads of their gradients
 * (1). On the CPU it returns when they are done. It also returns errors of deferred work; the engine's
 * tensors are then in an unknown state, and every later call fails. */
OCTAVO_API octavo_status octavo_engine_wait(octavo_engine* engine, const uint32_t* handles, int64_t count,
                                            uint32_t what, uint32_t device_kind, int32_t device_index,
                                            void* stream);
/* Call after parameters of residence 1 were written by other code. The engine keeps copies of them in host
 * memory: `way` 0 updates the copies from the parameters, 1 the parameters from the copies. */
OCTAVO_API octavo_status octavo_engine_refresh(octavo_engine* engine, const uint32_t* handles, int64_t count,
                                               uint32_t way, uint32_t device_kind, int32_t device_index,
                                               void* stream);
/* Waits on the host until no work is under way. States and step counts in host memory may then be read. */
OCTAVO_API octavo_status octavo_engine_synchronize(octavo_engine* engine);
/* Sets the order of updates of offloaded tensors: that of the next forward pass. A change invalidates the
 * current begin. */
OCTAVO_API octavo_status octavo_engine_set_order(octavo_engine* engine, const uint32_t* handles,
                                                 int64_t count);
/* Bytes of octavo_engine_device.staging that the next step needs on a device. */
OCTAVO_API int64_t octavo_engine_staging_bytes(const octavo_engine* engine, uint32_t device_kind,
                                               int32_t device_index);
/* Bytes of host memory that the engine has allocated. */
OCTAVO_API int64_t octavo_engine_host_bytes(const octavo_engine* engine);

typedef struct {
  int64_t numel;
  int64_t state_bytes; /* bytes of codes, scales and residual */
} octavo_residence_tensor;
/* Chooses whose states leave the device, and writes one octavo_engine_tensor.residence for each tensor.
 * `wanted` is the residence of those that leave. Tensors of fewer than min_size elements stay. `ratio` is the
 * share of all state bytes that leaves (1: all); `budget` is instead the number of bytes that may stay, or
 * -1. */
OCTAVO_API octavo_status octavo_choose_residences(const octavo_residence_tensor* tensors, int64_t count,
                                                  uint32_t wanted, int64_t min_size, double ratio,
                                                  int64_t budget, uint32_t* out);

/* Allocates zeroed host memory in complete pages. `pin` 1 pins it if possible: *pinned (which may be NULL) is
 * then 1; else the call succeeds all the same, and octavo_last_error says why the memory is not pinned. */
OCTAVO_API octavo_status octavo_host_alloc(int64_t bytes, uint32_t pin, void** out, uint32_t* pinned);
/* Frees memory of octavo_host_alloc. */
OCTAVO_API void octavo_host_free(void* data);
/* Bytes of host memory that this process can still allocate; 0 also where the call fails. */
OCTAVO_API int64_t octavo_host_room(void);

/* Records the copies, CPU work and kernels of offloaded steps from now on (1), or stops (0). */
OCTAVO_API void octavo_offload_trace(uint32_t on);
/* Adds an event of the caller's to the trace, while one is recorded: its row, its name, and its begin and end
 * in microseconds of CLOCK_MONOTONIC. */
OCTAVO_API octavo_status octavo_offload_trace_note(const char* row, const char* label, double begin,
                                                   double end);
/* Writes what was recorded as Chrome trace JSON, and clears it. */
OCTAVO_API octavo_status octavo_offload_trace_write(const char* path);

/* --- Dropout by counters: octavo/dropout.h says what each field means ----------------------------------- */

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

/* --- The transducer loss (TDT, RNN-T): octavo/transducer.h defines it and says what each field means ---- */

typedef struct {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t device_kind; /* 0 cpu, 1 cuda */
  int32_t device_index;
  uint32_t kind;      /* 0 tdt, 1 rnnt */
  uint32_t reduction; /* 0 mean_batch, 1 mean, 2 mean_volume, 3 sum, 4 none */
  int64_t batch, frames, positions, tokens, blank;
  const void* token_logits;
  int64_t token_strides[3]; /* of clips, frames and positions, in elements; three zeros: contiguous */
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

OCTAVO_API int64_t octavo_transducer_workspace_bytes(const octavo_transducer_args* args);
OCTAVO_API octavo_status octavo_transducer_loss(const octavo_transducer_args* args, float* losses);
OCTAVO_API octavo_status octavo_transducer_gradient(const octavo_transducer_args* args,
                                                    const octavo_transducer_grads* grads);

/* The loss together with the joint network, which computes the logits in tiles: TransducerJoint of
 * octavo/transducer.h. */
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

/* The sizes of the buffers that the caller allocates for the passes of a layer. */
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

/* --- Forecasts of a training step's memory and time: octavo/plan.h says what each field means ----------- */

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

typedef struct {
  int64_t id;
  int64_t bytes;  /* -1: the memory is freed */
  uint32_t owner; /* 0 weights, 1 gradients, 2 states, 3 master, 4 activations, 5 workspace, 6 communication,
                     7 batch */
  uint32_t reserved;
} octavo_plan_event;

typedef struct {
  uint32_t struct_size;
  uint32_t expandable_segments; /* torch's allocator setting; 0 is torch's default */
} octavo_plan_rules;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved_field;
  int64_t allocated, reserved;
  int64_t owners[8];
  int64_t rounding, peak_event;
} octavo_plan_memory;

typedef struct {
  uint32_t struct_size;
  uint32_t work;      /* 0 stream, 1 product */
  uint32_t precision; /* 0 fp32, 1 tf32, 2 fp16, 3 bf16, 4 fp8 */
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

typedef struct {
  double ready;
  int64_t bytes;
} octavo_plan_bucket;

/* Finds a GPU by key or name ("h100", "RTX 4090"), by memory ("24GB"), or the local one ("this"; "this:1" is
 * the second). */
OCTAVO_API octavo_status octavo_plan_find_gpu(const char* text, octavo_plan_gpu* gpu);
/* Replays allocations as torch's caching allocator does them, and returns the peak. */
OCTAVO_API octavo_status octavo_plan_simulate(const octavo_plan_event* events, int64_t count,
                                              const octavo_plan_rules* rules, octavo_plan_memory* memory);
/* The time of a step with these kernels on a GPU. */
OCTAVO_API octavo_status octavo_plan_step_time(const octavo_plan_gpu* gpu, const octavo_plan_kernel* kernels,
                                               int64_t count, double launch_seconds, octavo_plan_step* step);
/* The time of the gradients' all-reduces that is not hidden behind a backward pass of `backward` seconds. */
OCTAVO_API octavo_status octavo_plan_exposed_seconds(const octavo_plan_links* links,
                                                     const octavo_plan_bucket* buckets, int64_t count,
                                                     double backward, double* seconds);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* OCTAVO_OCTAVO_H_ */
