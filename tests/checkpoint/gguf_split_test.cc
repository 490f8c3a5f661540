// GGUF models of several files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_format.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_stamp.h"
#include "checkpoint/fingerprint.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kUint16 = 2, kInt32 = 5;

void SayPart(GgufWriter* w, int number, int count, int tensors) {
  w->Raw("split.no", kUint16, Encode<uint16_t>(number));
  w->Raw("split.count", kUint16, Encode<uint16_t>(count));
  w->Raw("split.tensors.count", kInt32, Encode<int32_t>(tensors));
}

class GgufSplitTest : public ::testing::Test {
 protected:
  std::string Name(int number, int count = 3) {
    return absl::StrFormat("m-%05d-of-%05d.gguf", number + 1, count);
  }
  void Write(const std::string& name, const GgufWriter& w) { WriteFile(directory_ + "/" + name, w.Write()); }
  // The tiny model and its (needless) head in a second file; the third has a tensor that no model needs.
  void WriteAll(int tensors = 13) {
    GgufWriter first = TinyGguf(), second, third;
    SayPart(&first, 0, 3, tensors);
    SayPart(&second, 1, 3, tensors);
    SayPart(&third, 2, 3, tensors);
    second.Tensor("output.weight", {8, 6}, 0, std::string(8 * 6 * 4, '\x3f'));
    third.Tensor("blk.0.extra", {1}, 24, "x");  // of a type that cannot be read
    Write(Name(0), first);
    Write(Name(1), second);
    Write(Name(2), third);
  }
  absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& name) {
    return Checkpoint::Open(directory_ + "/" + name);
  }
  std::string Error(const std::string& name) { return Open(name).status().ToString(); }

  std::string directory_ = MakeTempDir();
};

TEST_F(GgufSplitTest, PartsMakeOneModel) {
  WriteAll();
  const auto checkpoint = Open(Name(0));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().name, "m");
  EXPECT_FALSE((*checkpoint)->config().tie_word_embeddings);
  const TensorInfo* head = (*checkpoint)->Find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->file, Name(1));
  float value = 0;
  ASSERT_TRUE((*checkpoint)->ReadRows(*head, 5, 6, 7, 8, &value).ok());
  EXPECT_NEAR(value, 0.747, 1e-3);
  EXPECT_TRUE((*checkpoint)->ReadTokenizer().ok());
}

TEST_F(GgufSplitTest, MissingOrForeignPartsAreNamed) {
  WriteAll();
  std::filesystem::rename(directory_ + "/" + Name(2), directory_ + "/away");
  EXPECT_EQ(Error(Name(0)), "INVALID_ARGUMENT: " + Name(2) + ": part 3 of 3 of the model is missing");
  std::filesystem::copy(directory_ + "/" + Name(1), directory_ + "/" + Name(2));
  EXPECT_THAT(Error(Name(0)), HasSubstr(Name(2) + ": key split.no: 1"));
  std::filesystem::rename(directory_ + "/" + Name(0), directory_ + "/model.gguf");
  EXPECT_THAT(Error("model.gguf"), HasSubstr("the file's name does not end in -00001-of-00003.gguf"));
  EXPECT_THAT(Error(Name(1)),
              HasSubstr(Name(1) + ": key split.no: 1 (counted from 0), but part 0 is expected"));
}

TEST_F(GgufSplitTest, AnyPartNamesTheModel) {
  WriteAll();
  for (int number = 0; number < 3; ++number) {
    const auto checkpoint = Open(Name(number));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ((*checkpoint)->config().name, "m");
    EXPECT_NE((*checkpoint)->Find("lm_head.weight"), nullptr);
    EXPECT_EQ(*CheckpointFingerprint(directory_ + "/" + Name(number)),
              *CheckpointFingerprint(directory_ + "/" + Name(0)));
    EXPECT_EQ(TakeCheckpointStamp(directory_ + "/" + Name(number))->files.size(), 3u);
  }
}

TEST_F(GgufSplitTest, EndingsMayBeInCapitals) {
  WriteAll();
  for (int number = 0; number < 3; ++number) {
    std::string loud = Name(number);
    loud.replace(loud.size() - 4, 4, "GGUF");
    std::filesystem::rename(directory_ + "/" + Name(number), directory_ + "/" + loud);
  }
  const auto checkpoint = Open("m-00001-of-00003.GGUF");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().name, "m");
  Write("Alone.GGUF", TinyGguf());
  EXPECT_EQ((*Open("Alone.GGUF"))->config().name, "Alone");
}

TEST_F(GgufSplitTest, TheNumberOfTensorsIsChecked) {
  WriteAll(14);
  EXPECT_THAT(Error(Name(0)), HasSubstr(Name(0) + ": key split.tensors.count: 14, but the 3 files have 13"));
}

TEST_F(GgufSplitTest, NumbersOutOfRange) {
  for (const int count : {0, 1001, 65535}) {
    GgufWriter w = TinyGguf();
    SayPart(&w, 0, count, 11);
    Write("m.gguf", w);
    EXPECT_THAT(Error("m.gguf"), HasSubstr("split.count")) << count;
  }
  GgufWriter alone = TinyGguf();
  SayPart(&alone, 0, 1, 11);
  Write("m.gguf", alone);
  EXPECT_EQ(Error("m.gguf"), "OK");
}

TEST_F(GgufSplitTest, ATensorInTwoParts) {
  WriteAll();
  GgufWriter third;
  SayPart(&third, 2, 3, 13);
  third.Tensor("output.weight", {8, 6}, 0, std::string(8 * 6 * 4, 'x'));
  Write(Name(2), third);
  EXPECT_THAT(Error(Name(0)), HasSubstr(Name(2) + ": tensor lm_head.weight is there more than once"));
}

}  // namespace
}  // namespace somnus
