// The fuzz entries over seeded mutations of real files, so that the ordinary test run exercises them too.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "tests/checkpoint/fuzz/entries.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using Entry = absl::Status (*)(const uint8_t*, size_t);

absl::Status RunEntry(Entry entry, const std::string& bytes) {
  // A buffer of exactly this size, so that sanitizers see every read beyond it.
  std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  return entry(copy.get(), bytes.size());
}

// One to four changes among the first `reach` bytes, where the structure is.
std::string Mutate(std::string bytes, size_t reach, std::mt19937_64* rng) {
  static const uint64_t kInteresting[] = {
      0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, ~uint64_t{0}};
  auto below = [rng](size_t n) { return n == 0 ? 0 : (*rng)() % n; };
  for (uint64_t i = below(4) + 1; i > 0 && !bytes.empty(); --i) {
    const size_t at = below(std::min(reach, bytes.size()));
    switch (below(6)) {
      case 0:
        bytes[at] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>((*rng)());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, below(16) + 1);
        break;
      case 4:
        bytes.insert(at, bytes.substr(below(bytes.size()), below(64)));
        break;
      case 5: {
        const uint64_t value = kInteresting[below(std::size(kInteresting))];
        std::memcpy(&bytes[at], &value, std::min<size_t>(below(2) == 0 ? 4 : 8, bytes.size() - at));
        break;
      }
    }
  }
  return bytes;
}

void Replay(Entry entry, const std::string& seed, size_t reach, int rounds) {
  ASSERT_TRUE(RunEntry(entry, seed).ok()) << RunEntry(entry, seed);
  std::mt19937_64 rng(seed.size());
  int refused = 0;
  for (int i = 0; i < rounds; ++i) refused += !RunEntry(entry, Mutate(seed, reach, &rng)).ok();
  EXPECT_GT(refused, rounds / 4);  // the mutations reach the structure
}

TEST(FuzzReplay, Safetensors) {
  Replay(FuzzSafetensors, SafetensorsOf({{"a", {2, 3}}, {"b", {4}}, {"c", {}}, {"d", {0, 7}}}), 4096, 20000);
  Replay(FuzzSafetensors, ReadFile("tests/data/tiny/qwen3/model.safetensors"), 2600, 2000);
}

TEST(FuzzReplay, Gguf) {
  const GgufWriter tiny = TinyGguf();
  Replay(FuzzGguf, tiny.Write(), tiny.Header().size(), 20000);
  Replay(FuzzGguf, ReadFile("tests/data/gguf/llama-rope3.gguf"), 20000, 400);
}

TEST(FuzzReplay, Config) {
  for (const char* name : {"llama-rope3", "opt", "qwen2", "qwen3"}) {
    const std::string directory = std::string("tests/data/tiny/") + name;
    Replay(FuzzConfig,
           ReadFile(directory + "/config.json") + '\0' + ReadFile(directory + "/generation_config.json"),
           4096, 4000);
  }
}

TEST(FuzzReplay, Tokenizer) {
  const std::string directory = "tests/data/tiny/llama-uneven";
  Replay(FuzzTokenizer,
         ReadFile(directory + "/tokenizer.json") + '\0' + ReadFile(directory + "/tokenizer_config.json"),
         64 << 10, 4000);
}

TEST(FuzzReplay, Pieces) {
  Replay(FuzzPieces, ReadFile("tests/data/pieces/tokenizer.model"), 1 << 20, 20000);
}

}  // namespace
}  // namespace somnus
