// llama-batched-bench as decode_bench starts it: a script that notes its arguments stands for it.

#include "tools/bench/decode/batched_peer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace somnus {
namespace {

using Flags = std::vector<std::string>;

TEST(BatchedPeer, AsksForFlashAttentionInTheWordsOfItsVersion) {
  EXPECT_EQ(FlashAttentionFlags("-b, --batch N  size\n-fa,   --flash-attn [on|off|auto]   set it\n"),
            (Flags{"-fa", "on"}));
  EXPECT_EQ(FlashAttentionFlags("  -fa, --flash-attn <0|1>   (default: 0)\n"), (Flags{"-fa", "1"}));
  EXPECT_EQ(FlashAttentionFlags("-fa, --flash-attn    enable it (default: disabled)\n"), Flags{"-fa"});
  EXPECT_EQ(FlashAttentionFlags("-b, --batch N  size, not -fa, for long prompts\n"), Flags{});
}

// A program of this name that runs `script`; `args` is where it may note what it was told.
std::string Program(const std::string& name, const std::string& script) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << "#!/bin/sh\n" << script;
  chmod(path.c_str(), 0755);
  return path;
}

std::string Text(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(BatchedPeer, RunsOneBatchInAContextThatFitsIt) {
  const std::string args = testing::TempDir() + "/batched_peer_args";
  const std::string program =
      Program("batched_peer",
              "[ \"$1\" = --help ] && { echo '-fa, --flash-attn [on|off|auto]'; exit; }\n"
              "echo \"$@\" > " +
                  args +
                  "\n"
                  "echo 'loading'\n"
                  "echo '{\"speed_pp\": 1500.5, \"speed_tg\": 61.25}'\n");
  const auto peer = BatchedPeer::Find(program, "some.gguf", 3);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const auto sample = peer->Run(4, 16384, 32);
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->prefill_tokens_per_second, 1500.5);
  EXPECT_EQ(sample->decode_tokens_per_second, 61.25);
  // Each sequence has 16416 tokens, in 65 steps of 256.
  EXPECT_EQ(Text(args),
            "-m some.gguf -t 3 -fa on -c 66560 -npp 16384 -ntg 32 -npl 4 --output-format jsonl\n");
}

TEST(BatchedPeer, SaysWhatWentWrong) {
  EXPECT_TRUE(absl::IsNotFound(BatchedPeer::Find("/no/such/program", "some.gguf", 1).status()));
  const auto silent = BatchedPeer::Find(Program("silent_peer", "exit 0\n"), "some.gguf", 1);
  ASSERT_TRUE(silent.ok()) << silent.status();
  const absl::Status status = silent->Run(1, 8, 8).status();
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "printed no result")) << status;
}

}  // namespace
}  // namespace somnus
