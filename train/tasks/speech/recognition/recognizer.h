// A trained speech model for recognition: audio samples in, words with their times out.
//
//   auto recognizer = octavo_train::Recognizer::open("runs/speech", {.checkpoint = "best"});
//   if (!recognizer.ok()) return recognizer.status();
//   const std::vector<Transcription> results = recognizer->transcribe(clips);
//
// To transcribe many clips, with threads that read them while the device computes, call
// transcribe_all(recognizer->info().transcribe, …) of batch_recognition.h.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/tasks/speech/config/model_settings.h"
#include "train/tasks/speech/recognition/batch_recognition.h"
#include "train/tasks/speech/recognition/transcription.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

class SpeechModelImpl;
class Tokenizer;

struct RecognizerOptions {
  std::string checkpoint = {};            // for a run's folder: best, latest or a step; empty: latest
  DeviceName device = {};                 // device of the model
  std::optional<ComputeType> dtype = {};  // nullopt: bfloat16 on a GPU, float32 elsewhere
};

class Recognizer {
 public:
  // `name` is a run's folder, a checkpoint's folder, a `.nemo` file, a transformers folder, or a model name
  // on the Hugging Face hub. Returns an error if the model has no tokenizer, such as a model trained on
  // generated clips.
  static Result<Recognizer> open(const std::string& name, const RecognizerOptions& options = {});

  // Creates a recognizer from an existing model. Moves the model to the device and puts it into evaluation
  // mode. Ignores `options.checkpoint`.
  static Result<Recognizer> from_model(std::shared_ptr<SpeechModelImpl> model, Tokenizer tokenizer,
                                       const FeatureSettings& features,
                                       const RecognizerOptions& options = {});

  Recognizer(Recognizer&&) noexcept;
  Recognizer& operator=(Recognizer&&) noexcept;
  ~Recognizer();

  // Transcribes one batch of mono clips at rate() samples per second and returns the results in the same
  // order. Clips may have any length, including zero. Only one thread may call it at a time. Throws
  // c10::Error, such as c10::OutOfMemoryError.
  [[nodiscard]] std::vector<Transcription> transcribe(std::span<const std::span<const float>> clips);

  // Returns the arguments that transcribe_all() and transcribe_files() need. The result refers to this
  // recognizer, which must outlive it.
  [[nodiscard]] RecognizerInfo info();

  [[nodiscard]] int rate() const;              // samples per second
  [[nodiscard]] double frame_seconds() const;  // of an encoder frame; all times are multiples of it
  [[nodiscard]] const Tokenizer& tokenizer() const;
  [[nodiscard]] std::string device_text() const;
  // Returns a default for BatchRecognitionOptions::batch_seconds: 1,200 s on a GPU, which keeps it busy and
  // fits into its memory, and 60 s on a CPU, which fits into the memory of a laptop.
  [[nodiscard]] double batch_seconds() const;
  // Returns lines for the console: which checkpoint was chosen and why, and which checkpoints were skipped.
  [[nodiscard]] const std::vector<std::string>& notes() const;

 private:
  struct Parts;
  explicit Recognizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace octavo_train
