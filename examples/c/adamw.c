/* Makes three steps of AdamW with 8-bit states through the C ABI: clips the gradients to norm 1, and skips a
   step whose gradients are not finite. A fourth step reads its scalars from memory, as a step on a GPU can.
   docs/guides/cpp.md explains it.
   SPDX-License-Identifier: MIT */
#include <octavo/octavo.h>

#include <stdio.h>
#include <stdlib.h>

static void check(octavo_status status) {
  if (status != 0) {
    fprintf(stderr, "%s\n", octavo_last_error());
    exit(1);
  }
}

int main(void) {
  enum { N = 1 << 20 };
  float* weights = calloc(N, sizeof *weights);
  float* grads = malloc(N * sizeof *grads);
  for (int i = 0; i < N; ++i) grads[i] = 0.01f;

  uint32_t adamw, format;
  check(octavo_parse("optimizer", "adamw", &adamw));
  check(octavo_parse("state", "8bit", &format));

  octavo_engine* engine = NULL;
  check(octavo_engine_create(adamw, &engine));

  /* The options of a parameter group. */
  octavo_step_args options = {.struct_size = sizeof options};
  check(octavo_step_args_init(&options));
  options.weight_decay = 0.01;
  options.clip_grad_norm = 1.0;
  check(octavo_engine_set_group(engine, 0, 0, &options, 0, 0));

  /* One parameter, its state buffers and its step count. */
  octavo_tensor_spec spec = {.struct_size = sizeof spec, .format = format, .numel = N};
  octavo_tensor_layout need = {.struct_size = sizeof need};
  check(octavo_layout(adamw, 0, &spec, &need));
  int64_t steps = 0;
  octavo_engine_tensor tensor = {.struct_size = sizeof tensor, .format = format, .numel = N};
  tensor.param = weights;
  tensor.step = &steps;
  for (int i = 0; i < need.slots; ++i) { /* zero bytes are the initial state */
    tensor.codes[i] = calloc(1, (size_t)need.codes_bytes[i]);
    tensor.scales[i] = calloc((size_t)need.scales[i], sizeof(float));
  }
  const uint32_t handle = 0;
  check(octavo_engine_set(engine, &handle, &tensor, 1));

  octavo_device_norm norm;
  octavo_engine_device device = {.struct_size = sizeof device, .norm = &norm}; /* the CPU */
  octavo_engine_args args = {.struct_size = sizeof args, .devices = &device, .device_count = 1};
  args.skip_nonfinite = 1;
  octavo_engine_norm_part part = {.struct_size = sizeof part, .out = &norm};
  octavo_engine_plan plan = {.struct_size = sizeof plan};
  octavo_step_report report = {.struct_size = sizeof report};
  const void* gradient = grads;
  const uint8_t fp32 = 0;
  uint64_t number = 0; /* of the plan */
  for (int i = 0; i < 3; ++i) {
    check(octavo_engine_begin(engine, &handle, &gradient, &fp32, 1, 1, &plan));
    if (plan.number != number) {
      number = plan.number;
      free(device.workspace);
      device.workspace_bytes = octavo_engine_workspace_bytes(engine, 0, 0);
      device.workspace = malloc((size_t)device.workspace_bytes); /* malloc aligns to 16 */
    }
    check(octavo_engine_norm(engine, &args, &part, 1, NULL, NULL));
    check(octavo_engine_step(engine, &args, &report));
  }

  printf("norm %.4f, weight %.8f, steps %d, skipped %u\n", norm.l2, weights[0], (int)steps, report.skipped);

  /* A step can read its learning rate, loss scale and found_inf from memory of the tensors' device. */
  float lr = 5e-4f, loss_scale = 1024.0f, found_inf = 0.0f;
  octavo_device_report outcome;
  options.scalar_lr = &lr; /* replaces options.lr */
  check(octavo_engine_set_group(engine, 0, 0, &options, 0, 0));
  device.loss_scale = &loss_scale;
  device.found_inf = &found_inf;
  device.report = &outcome;
  check(octavo_engine_begin(engine, &handle, &gradient, &fp32, 1, 1, &plan));
  check(octavo_engine_norm(engine, &args, &part, 1, NULL, NULL));
  check(octavo_engine_step(engine, &args, NULL));
  printf("steps %d, skipped %u\n", (int)steps, outcome.skipped);

  octavo_engine_destroy(engine);
  for (int i = 0; i < need.slots; ++i) {
    free(tensor.codes[i]);
    free(tensor.scales[i]);
  }
  free(device.workspace);
  free(grads);
  free(weights);
  return 0;
}
