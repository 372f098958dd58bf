// A trained speech model that hears: samples in, words with their times out.
//
//   auto listener = octavo::train::Listener::open("runs/speech", {.checkpoint = "best"});
//   if (!listener.ok()) return listener.status();
//   const std::vector<Heard> heard = listener->hear(clips);
//
// Many clips, read by threads while the device computes: hear_all(listener->hearing().hear, …) of
// listening.h.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/tasks/speech/feature_settings.h"
#include "train/tasks/speech/heard.h"
#include "train/tasks/speech/listening.h"

#include <octavo/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

class SpeechModelImpl;
class Tokenizer;

struct ListenerOptions {
  std::string checkpoint = {};            // of a run: best, latest or a step; empty: latest
  DeviceName device = {};                 // where it computes
  std::optional<ComputeType> dtype = {};  // none: bfloat16 on a GPU, float32 elsewhere
};

class Listener {
 public:
  // `name`: a run's folder, a checkpoint's, a `.nemo` file, a folder of transformers, or a name of the hub.
  // A model without a tokenizer, such as that of generated clips, is an error.
  static Result<Listener> open(const std::string& name, const ListenerOptions& options = {});

  // Of a model that is there, which is moved to the device, in evaluation mode. `options.checkpoint` is none.
  static Result<Listener> of(std::shared_ptr<SpeechModelImpl> model, Tokenizer tokenizer,
                             const FeatureSettings& features, const ListenerOptions& options = {});

  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  // One batch: mono clips at rate(), of any lengths, also of none; what is heard in the same order. One
  // thread at a time. Throws c10::Error, such as c10::OutOfMemoryError.
  [[nodiscard]] std::vector<Heard> hear(std::span<const std::span<const float>> clips);

  // The same for many clips: it refers to this.
  [[nodiscard]] Hearing hearing();

  [[nodiscard]] int rate() const;              // samples in a second
  [[nodiscard]] double frame_seconds() const;  // of the encoder's frames, which times are in steps of
  [[nodiscard]] const Tokenizer& tokenizer() const;
  [[nodiscard]] std::string device_text() const;
  // Of ListeningOptions: as much as keeps the device busy and fits into its memory, or into that of a laptop.
  [[nodiscard]] double batch_seconds() const;
  // Lines for the console: which checkpoint was taken and why, what was not taken.
  [[nodiscard]] const std::vector<std::string>& notes() const;

 private:
  struct Parts;
  explicit Listener(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace octavo::train
