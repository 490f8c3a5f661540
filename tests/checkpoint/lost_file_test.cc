// Files that are cut while mapped: an error that names the file, not the end of the process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "checkpoint/map_guard.h"
#include "checkpoint/mapped_file.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;

const std::string kTiny = "tests/data/tiny/llama-uneven";

class LostFile : public ::testing::Test {
 protected:
  // A copy of the tiny checkpoint; its weights are of many pages.
  std::unique_ptr<Checkpoint> OpenCopy() {
    for (const auto& entry : std::filesystem::directory_iterator(kTiny)) {
      WriteFile(directory_ + "/" + entry.path().filename().string(), ReadFile(entry.path()));
    }
    auto checkpoint = Checkpoint::Open(directory_);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
  }
  void Cut(const std::string& name, uint64_t bytes) {
    std::filesystem::resize_file(directory_ + "/" + name, bytes);
  }
  uint64_t Size(const std::string& name) { return std::filesystem::file_size(directory_ + "/" + name); }

  std::string directory_ = MakeTempDir();
};

std::string ReadWhole(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  const int64_t cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  std::vector<float> values(tensor.shape[0] * cols);
  return checkpoint.ReadRows(tensor, 0, tensor.shape[0], 0, cols, values.data()).ToString();
}

TEST_F(LostFile, TensorsOfAFileThatWasCutAreErrors) {
  const auto checkpoint = OpenCopy();
  ASSERT_NE(checkpoint, nullptr);
  for (const TensorInfo* tensor : checkpoint->Tensors()) EXPECT_EQ(ReadWhole(*checkpoint, *tensor), "OK");
  Cut("model.safetensors", 0);
  for (const TensorInfo* tensor : checkpoint->Tensors()) {
    const std::string error = ReadWhole(*checkpoint, *tensor);
    EXPECT_THAT(error, HasSubstr("DATA_LOSS: model.safetensors: the file was cut to 0 of its"));
    EXPECT_THAT(error, HasSubstr("tensor " + tensor->name));
  }
}

TEST_F(LostFile, ColumnsOfAFileThatWasCutAreErrorsToo) {
  const auto checkpoint = OpenCopy();
  ASSERT_NE(checkpoint, nullptr);
  Cut("model.safetensors", Size("model.safetensors") / 2);
  const TensorInfo& tensor = *checkpoint->Find("model.layers.1.mlp.down_proj.weight");
  std::vector<float> column(tensor.shape[0]);
  EXPECT_THAT(checkpoint->ReadRows(tensor, 0, tensor.shape[0], 5, 6, column.data()).ToString(),
              HasSubstr("DATA_LOSS: model.safetensors"));
}

// The kernel shows the rest of a file's last page as zeros, without a fault.
TEST_F(LostFile, ACutOfAFewBytesIsNoticed) {
  const auto checkpoint = OpenCopy();
  ASSERT_NE(checkpoint, nullptr);
  Cut("model.safetensors", Size("model.safetensors") - 3);
  EXPECT_THAT(ReadWhole(*checkpoint, *checkpoint->Tensors().back()), HasSubstr("DATA_LOSS"));
}

TEST_F(LostFile, ManyThreadsMayReadIt) {
  const auto checkpoint = OpenCopy();
  ASSERT_NE(checkpoint, nullptr);
  Cut("model.safetensors", 4096);
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const TensorInfo* tensor : checkpoint->Tensors())
        refused += ReadWhole(*checkpoint, *tensor) != "OK";
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 4 * static_cast<int>(checkpoint->Tensors().size()));
}

TEST_F(LostFile, MetadataOfAGgufFileThatWasCut) {
  const std::string path = directory_ + "/m.gguf";
  WriteFile(path, ReadFile("tests/data/gguf/llama-rope3.gguf"));
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE((*checkpoint)->ReadTokenizer().ok());
  Cut("m.gguf", 100);
  EXPECT_THAT((*checkpoint)->ReadTokenizer().status().ToString(),
              HasSubstr("DATA_LOSS: m.gguf: the file was cut"));
}

TEST_F(LostFile, TextThatIsCutWhileItIsOpen) {
  WriteFile(directory_ + "/a.json", std::string(10000, ' ') + "{}");
  const auto file = MappedFile::Open(directory_ + "/a.json");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->text().back(), '}');
  Cut("a.json", 0);
  EXPECT_EQ((*file)->text().back(), '\0');
  EXPECT_EQ((*file)->CheckWhole().ToString(),
            "DATA_LOSS: a.json: the file was cut to 0 of its 10002 bytes while it was in use");
}

// A page that cannot be read though the file is as long as ever, as on a failing disk.
TEST_F(LostFile, APageThatCannotBeRead) {
  WriteFile(directory_ + "/a.bin", std::string(3 * 4096, 'x'));
  const auto file = MappedFile::Open(directory_ + "/a.bin");
  ASSERT_TRUE(file.ok());
  Cut("a.bin", 4096);
  EXPECT_EQ((*file)->text()[2 * 4096], '\0');
  WriteFile(directory_ + "/a.bin", std::string(3 * 4096, 'x'));
  EXPECT_EQ((*file)->CheckWhole().ToString(), "DATA_LOSS: a.bin: a part of the file could not be read");
}

// Faults outside of guarded maps go to the handler that was there before.
TEST(MapGuardDeathTest, OtherFaultsEndTheProcess) {
  const std::string path = MakeTempDir() + "/m";
  WriteFile(path, std::string(2 * 4096, 'x'));
  const auto guarded = MappedFile::Open(path);
  ASSERT_TRUE(guarded.ok());
  const auto fault = [&path] {
    FILE* file = fopen(path.c_str(), "r");
    const auto* map = static_cast<char*>(mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, fileno(file), 0));
    if (truncate(path.c_str(), 0) != 0) _exit(0);
    volatile char c = map[4096];
    _exit(c == 0 ? 0 : 1);
  };
  EXPECT_DEATH(fault(), "");
}

TEST(MapGuard, WatchesAgainAfterOthersHaveGone) {
  char bytes[16];
  for (int i = 0; i < 10000; ++i) {
    const MapGuard guard(bytes, sizeof(bytes));
    ASSERT_TRUE(guard.watching());
    ASSERT_FALSE(guard.lost());
  }
}

}  // namespace
}  // namespace somnus
