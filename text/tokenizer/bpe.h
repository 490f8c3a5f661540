#pragma once
// Byte-pair encoding of one pre-token: merges by rank, leftmost first among equals. Thread safe: immutable
// after Create, except for a bounded cache of short pieces, which mutexes guard.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

class Bpe {
 public:
  // `data` must outlive the Bpe: the vocabulary is keyed by views of data.tokens. data.merges may be freed
  // after Create. `byte_pieces`: pieces are raw bytes, and the Bpe maps them to the byte alphabet.
  // InvalidArgument: a merge of, or into, a token outside of the vocabulary; an unk_token outside of the
  // vocabulary; with merge_scores a token that is absurdly long.
  static absl::StatusOr<std::unique_ptr<Bpe>> Create(const TokenizerData& data, bool byte_pieces);

  // Appends the ids of `piece`. As in Hugging Face, characters that the vocabulary lacks become bytes
  // (byte_fallback), the unk token (with fuse_unk one token for a run of them), or nothing. O(n log n) in the
  // length of the piece.
  void Encode(absl::string_view piece, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    uint32_t rank;  // merges of the same rank are done from left to right
    int32_t id;
  };
  struct Shard {
    absl::Mutex mutex;
    absl::flat_hash_map<std::string, std::vector<int32_t>> words;
  };

  Bpe() = default;
  absl::Status AddMerges(const TokenizerData& data);
  absl::Status AddScoredMerges(const TokenizerData& data);
  absl::Status AddMerge(const TokenizerData& data, size_t rank, const std::string& whole);
  // Sets cuts_words_.
  void FindWordStarts(const TokenizerData& data);
  int32_t Lookup(absl::string_view token) const;  // -1: not in the vocabulary
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void EncodeWord(absl::string_view piece, std::vector<int32_t>* ids) const;
  void EncodeUncached(absl::string_view piece, std::vector<int32_t>* ids) const;
  void AppendSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const;
  void AppendUnknown(absl::string_view character, std::vector<int32_t>* symbols) const;
  void MergeShort(std::vector<int32_t>* symbols) const;
  void MergeLong(std::vector<int32_t>* symbols) const;

  bool byte_pieces_ = false, ignore_merges_ = false, byte_fallback_ = false, fuse_unk_ = false;
  // No token has SentencePiece's space behind other text, so no merge crosses the start of a word, and words
  // can be encoded, and found in the cache, separately.
  bool cuts_words_ = false;
  int32_t unk_id_ = -1;
  std::array<int32_t, 256> byte_ids_;      // of the alphabet's characters; byte_pieces_ only
  std::array<int32_t, 256> fallback_ids_;  // of <0x00> .. <0xFF>
  absl::flat_hash_map<absl::string_view, int32_t> vocab_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  mutable std::array<Shard, 16> cache_;
};

}  // namespace somnus
