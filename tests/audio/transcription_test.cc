// Tests the file formats of transcripts.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/recognition/transcription.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octavo_train {
namespace {

using testing::ElementsAre;

TEST(TranscriptFile, CuesEndWithSentencesPausesAndRoom) {
  EXPECT_THAT(cues_of({}), ElementsAre());
  EXPECT_THAT(
      cues_of(
          {{"Two", 0, 0.4}, {"boats.", 0.4, 0.8}, {"One", 0.8, 1.0}, {"sank", 2.4, 2.8}, {"here", 2.9, 9.5}}),
      ElementsAre(Cue{0, 0.8, "Two boats."}, Cue{0.8, 1.0, "One"}, Cue{2.4, 2.8, "sank"},
                  Cue{2.9, 9.5, "here"}));
  std::vector<TranscribedWord> many;
  for (int i = 0; i < 30; ++i) many.push_back({"\u00e4\u00e4\u00e4\u00e4", 0.1 * i, 0.1 * i + 0.1});
  const auto cues = cues_of(many);
  ASSERT_EQ(cues.size(), 2U);
  EXPECT_EQ(cues[0].text.size(), 17U * 8 + 16);  // 84 characters; all except the spaces have two bytes
}

const Transcription kTranscription{"One <boat> & no more.",
                                   {{"One", 0.08, 0.4},
                                    {"<boat>", 0.4, 1},
                                    {"&", 1.04, 1.1},
                                    {"no", 3661.5, 3662},
                                    {"more.", 3662, 3663.25}},
                                   {}};

TEST(TranscriptFile, TextAndJson) {
  EXPECT_EQ(transcript_text(TranscriptFormat::text, "a.wav", 3, kTranscription), "One <boat> & no more.\n");
  EXPECT_EQ(
      transcript_text(TranscriptFormat::json, "dir/a \"b\".wav", 1.23456, {"Hi", {{"Hi", 0.08, 0.24}}, {}}),
      R"({"audio_filepath":"dir/a \"b\".wav","duration":1.235,"text":"Hi","words":[{"word":"Hi","start":0.08,"end":0.24}]})"
      "\n");
  EXPECT_EQ(transcript_text(TranscriptFormat::json, "\xff.wav", 0, {}),
            "{\"audio_filepath\":\"\uFFFD.wav\",\"duration\":0.0,\"text\":\"\",\"words\":[]}\n");
}

TEST(TranscriptFile, Subtitles) {
  EXPECT_EQ(transcript_text(TranscriptFormat::srt, "a.wav", 3, kTranscription),
            "1\n00:00:00,080 --> 00:00:01,100\nOne <boat> &\n\n"
            "2\n01:01:01,500 --> 01:01:03,250\nno more.\n");
  EXPECT_EQ(transcript_text(TranscriptFormat::vtt, "a.wav", 3, kTranscription),
            "WEBVTT\n\n00:00:00.080 --> 00:00:01.100\nOne &lt;boat&gt; &amp;\n\n"
            "01:01:01.500 --> 01:01:03.250\nno more.\n");
  EXPECT_EQ(transcript_text(TranscriptFormat::srt, "a.wav", 3, {}), "");
  EXPECT_EQ(transcript_text(TranscriptFormat::vtt, "a.wav", 3, {}), "WEBVTT\n");
  std::vector<TranscribedWord> many;
  for (int i = 0; i < 12; ++i) many.push_back({"words", 0.1 * i, 0.1 * i + 0.1});
  EXPECT_EQ(transcript_text(TranscriptFormat::srt, "", 3, {"", many, {}}),
            "1\n00:00:00,000 --> 00:00:01,200\nwords words words words words words\nwords words words words "
            "words words\n");
}

TEST(TranscriptFile, FormatsHaveNamesAndExtensions) {
  EXPECT_EQ(parse_transcript_format("vtt"), TranscriptFormat::vtt);
  EXPECT_EQ(parse_transcript_format("doc"), std::nullopt);
  EXPECT_EQ(extension_of(TranscriptFormat::text), ".txt");
}

}  // namespace
}  // namespace octavo_train
