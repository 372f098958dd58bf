// Opens, checks and decodes recordings with libsndfile; see decoder.h.
// SPDX-License-Identifier: MIT
#include "train/audio/decoder.h"

#include "train/base/numbers.h"
#include "train/base/status.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace octavo_train {
namespace {

std::string exact_seconds(double seconds) { return decimal_text(seconds, std::chars_format::fixed, 6); }

constexpr std::int64_t kBlockSamples = 1 << 14;  // samples of all channels: a block that fits in the cache
constexpr std::int64_t kSecondsAhead = 1;  // seconds decoded before an MP3 seek target, enough at 8,000 bit/s
constexpr float kLoudest = 1e10F;
constexpr std::int64_t kMostFrames = std::int64_t{1} << 48;

// The supported formats of files, by libsndfile's number.
constexpr std::array<std::pair<int, const char*>, 11> kFormats = {{{SF_FORMAT_WAV, "WAV"},
                                                                   {SF_FORMAT_WAVEX, "WAV"},
                                                                   {SF_FORMAT_RF64, "WAV"},
                                                                   {SF_FORMAT_W64, "WAV"},
                                                                   {SF_FORMAT_FLAC, "FLAC"},
                                                                   {SF_FORMAT_OGG, "OGG"},
                                                                   {SF_FORMAT_MPEG, "MP3"},
                                                                   {SF_FORMAT_AIFF, "AIFF"},
                                                                   {SF_FORMAT_AU, "AU"},
                                                                   {SF_FORMAT_CAF, "CAF"},
                                                                   {SF_FORMAT_NIST, "NIST"}}};

std::string format_name(int format) {
  const auto* const found =
      std::ranges::find(kFormats, format & SF_FORMAT_TYPEMASK, &std::pair<int, const char*>::first);
  return found == kFormats.end() ? "" : found->second;
}

// Mixes interleaved frames down to one channel and appends them to `samples`.
void mix_down(std::span<const float> block, int channels, std::optional<int> channel,
              std::vector<float>& samples) {
  const auto width = static_cast<std::size_t>(channels);
  if (width == 1) {
    samples.insert(samples.end(), block.begin(), block.end());
    return;
  }
  const std::size_t before = samples.size();
  samples.resize(before + block.size() / width);
  const std::span<float> out = std::span(samples).subspan(before);
  if (channel) {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = block[i * width + static_cast<std::size_t>(*channel)];
    return;
  }
  const float share = 1.0F / static_cast<float>(channels);
  for (std::size_t i = 0; i < out.size(); ++i) {
    float sum = 0;
    for (std::size_t c = 0; c < width; ++c) sum += block[i * width + c];
    out[i] = sum * share;
  }
}

// Returns true if all samples are finite and at most kLoudest. Full scale is 1, and some float files have the
// range of integers. Larger values are not sound, and sums of them may overflow.
bool all_sound(std::span<const float> samples) {
  int beyond = 0;  // branch-free, so that the loop is vectorized; NaN fails the comparison
  for (const float x : samples) beyond |= std::abs(x) <= kLoudest ? 0 : 1;
  return beyond == 0;
}

}  // namespace

Result<Decoder> Decoder::open(const std::string& path, std::optional<int> channel) {
  ASSIGN_OR_RETURN(InputFile input, InputFile::open(path));
  RETURN_IF_ERROR(check_header(input, path));
  Decoder decoder;
  decoder.input_ = std::move(input);
  decoder.path_ = path;
  decoder.channel_ = channel;
  SF_INFO found{};
  RETURN_IF_ERROR(decoder.start(found));
  RETURN_IF_ERROR(decoder.check(found));
  decoder.vorbis_ = (found.format & SF_FORMAT_SUBMASK) == SF_FORMAT_VORBIS;
  decoder.info_ = {found.frames, found.samplerate, found.channels, format_name(found.format)};
  decoder.block_.resize(
      static_cast<std::size_t>(std::max<std::int64_t>(kBlockSamples / found.channels, 1) * found.channels));
  if (found.frames <= 0 || found.frames > kMostFrames) {
    RETURN_IF_ERROR(decoder.count_frames(found));
  }
  // A FLAC frame has up to 65,535 samples in at least 8 bytes.
  if (const std::uint64_t most = decoder.input_.size * 8192;
      decoder.info_.format == "FLAC" && static_cast<std::uint64_t>(decoder.info_.frames) > most) {
    return invalid_error(
        "{}: its header promises {} samples, but its {} bytes hold at most {}; the header is "
        "damaged, write the file again",
        path, decoder.info_.frames, decoder.input_.size, most);
  }
  if (decoder.info_.frames == 0) {
    return Status::invalid(path + ": has no samples; omit it, or record it again");
  }
  return decoder;
}

Status Decoder::start(SF_INFO& found) {
  file_.reset();
  position_ = 0;
  if (::lseek(input_.descriptor.get(), 0, SEEK_SET) != 0)
    return failed_error("{}: cannot go to its start", path_);
  found = {};
  file_.reset(sf_open_fd(input_.descriptor.get(), SFM_READ, &found, SF_FALSE));
  if (file_ == nullptr) return library_error("open");
  return {};
}

Status Decoder::check(const SF_INFO& found) const {
  if (format_name(found.format).empty()) {
    return invalid_error("{}: is of a format that is not read here; convert it to FLAC or WAV first", path_);
  }
  if (found.samplerate < kLowestRate || found.samplerate > kHighestRate) {
    return invalid_error(
        "{}: its header says {} samples a second, expected {} to {}; the header is damaged, "
        "write the file again",
        path_, found.samplerate, kLowestRate, kHighestRate);
  }
  if (found.channels < 1) return invalid_error("{}: has no channels", path_);
  if (channel_ && (*channel_ < 0 || *channel_ >= found.channels)) {
    return invalid_error("{}: channel {} was asked for, it has {} (from 0)", path_, *channel_,
                         found.channels);
  }
  return {};
}

// Counts the frames by decoding the file, for headers without a length (a FLAC file written to a pipe).
Status Decoder::count_frames(SF_INFO& found) {
  std::int64_t total = 0;
  const auto frames = static_cast<sf_count_t>(block_.size()) / found.channels;
  for (sf_count_t got = 1; got > 0; total += got) got = sf_readf_float(file_.get(), block_.data(), frames);
  if (sf_error(file_.get()) != SF_ERR_NO_ERROR) return library_error("decode");
  RETURN_IF_ERROR(start(found));
  info_.frames = total;
  return {};
}

// An MP3 frame uses bits of earlier frames, of more frames than libsndfile decodes before a seek target.
// Vorbis is decoded from the start, because libvorbis 1.3 crashes when it seeks over a damaged packet.
Status Decoder::seek(std::int64_t frame) {
  std::int64_t from = frame;
  if (info_.format == "MP3") from = std::max<std::int64_t>(frame - kSecondsAhead * info_.rate, 0);
  if (vorbis_) from = position_;
  RETURN_IF_ERROR(jump(from));
  return skip(frame - from);
}

Status Decoder::skip(std::int64_t frames) {
  std::vector<float> dropped;
  while (frames > 0) {
    dropped.clear();
    const std::int64_t before = position_;
    RETURN_IF_ERROR(read(std::min(frames, kBlockSamples), dropped));
    if (position_ == before) return check_end();
    frames -= position_ - before;
  }
  return {};
}

Status Decoder::jump(std::int64_t frame) {
  if (frame == position_) return {};
  if (sf_seek(file_.get(), frame, SEEK_SET) != frame)
    return library_error("go to frame " + std::to_string(frame));
  position_ = frame;
  return {};
}

Status Decoder::read(std::int64_t frames, std::vector<float>& samples) {
  const auto room = static_cast<std::int64_t>(block_.size()) / info_.channels;
  while (frames > 0) {
    const sf_count_t asked = std::min(frames, room);
    const sf_count_t got = sf_readf_float(file_.get(), block_.data(), asked);
    if (sf_error(file_.get()) != SF_ERR_NO_ERROR) {
      position_ += std::max<sf_count_t>(got, 0);
      return library_error("decode from second " +
                           exact_seconds(static_cast<double>(position_) / info_.rate) + " on of");
    }
    if (got <= 0) break;
    const auto block = std::span(block_).first(static_cast<std::size_t>(got * info_.channels));
    if (!all_sound(block)) {
      return invalid_error(
          "{}: has samples that are not numbers, or beyond 1e10, near second {}; write it again, or leave it "
          "out",
          path_, exact_seconds(static_cast<double>(position_) / info_.rate));
    }
    mix_down(block, info_.channels, channel_, samples);
    position_ += got;
    frames -= got;
  }
  return {};
}

Status Decoder::check_end() const {
  const double missing = static_cast<double>(info_.frames - position_) / info_.rate;
  if (missing <= kShortfallAllowed) return {};
  return invalid_error(
      "{}: is cut short: its header promises {} s, it ends at {} s; get the complete file, or omit it", path_,
      exact_seconds(info_.seconds()), exact_seconds(static_cast<double>(position_) / info_.rate));
}

Status Decoder::library_error(const std::string& action) const {
  std::string reason = sf_strerror(file_.get());
  while (!reason.empty() && (reason.back() == '.' || reason.back() == '\n')) reason.pop_back();
  // If a file could not be opened, libsndfile keeps one error for all threads, and it may have been reset.
  if (reason == "No Error") reason = "libsndfile does not understand it";
  return invalid_error("{}: cannot {} it: {}; it may be damaged: play it, or omit it", path_, action, reason);
}

}  // namespace octavo_train
