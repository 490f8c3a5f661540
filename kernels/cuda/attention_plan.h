#pragma once
// The cut of paged attention into thread blocks, and the scratch. Plain numbers of the host: no CUDA here,
// and nothing that only the device knows (context lengths), so that a captured graph serves any lengths.

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus {

// A tile of queries in decode: the heads that share a KV head are the rows of one m16n8k16.
inline constexpr int kDecodeRows = 16;
inline constexpr int kDecodeWarps = 4;
// The tokens that a warp of decode loads at once, and the smallest cache block for tensor cores.
inline constexpr int kSubTileTokens = 16;
// The grain of decode's split: a sub-tile of each warp.
inline constexpr int kDecodeTileTokens = kDecodeWarps * kSubTileTokens;
// Queries times heads of a block in prefill.
inline constexpr int kPrefillRows = 128;
// The only places where prefill cuts a context. A row's sums are sums of sections of this many tokens, added
// up in one tree, regardless of the computing blocks: see attention_sections.h.
inline constexpr int kSectionTokens = 2048;
// A context is cut into no more spans of sections than this.
inline constexpr int kMaxSpans = 64;
inline constexpr int kMaxStages = 4;
inline constexpr int64_t kMaxMmaHeadDim = 256;

// The numbers of a chip that plans need; see ChipLimits.
struct AttentionChip {
  int num_sms = 0;
  int64_t max_shared_bytes = 0;
  int64_t shared_bytes_per_sm = 0;
};

struct AttentionShape {
  DataType act = DataType::kBF16;
  DataType cache = DataType::kBF16;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t block_size = 0;
};

// Returns the smallest head dimension that a kernel was compiled for (64, 96, 128 or 256) and that holds
// head_dim; 0 when there is none.
int CompiledHeadDim(int64_t head_dim);

// Returns whether tensor cores can take this shape: 16-bit queries, a cache of the same type or of 8 bits,
// cache blocks of whole sub-tiles, and rows of whole 16-byte words. All other shapes go to the plain kernel.
bool TakesTensorCores(const AttentionShape& shape);

// Bytes between two tokens of a tile in shared memory: 16 more than the row, so that the 8 rows of an
// ldmatrix lie in different banks.
constexpr int64_t TilePitch(int64_t dims, int64_t element_bytes) { return dims * element_bytes + 16; }

// Blocks of decode (128 threads) that share a multiprocessor's registers, and for which Hopper's shared
// memory has room, by the compiled head dimension and the cache's element.
constexpr int DecodeBlocksPerSm(int64_t dims, int64_t element_bytes) {
  return dims > 128 ? 1 : dims > 64 && element_bytes > 1 ? 2 : 3;
}

// Tokens of a K/V tile in prefill.
constexpr int PrefillTileTokens(int64_t dims) { return dims > 64 ? 32 : 64; }
// Warps of a block of prefill: each has 32 rows, so that the K and V that the warp reads from shared memory
// are used twice, or 16 rows where the outputs of 32 would not fit the registers.
constexpr int PrefillWarps(int64_t dims) { return dims > 128 ? 8 : 4; }
// Blocks of prefill that share a multiprocessor's registers.
constexpr int PrefillBlocksPerSm(int64_t dims) { return dims > 128 ? 1 : 2; }

// The scratch in which decode's blocks keep parts that are still to be combined: first a record of each
// block, then two slots a block. A slot is kDecodeRows rows of f32: the sums over V, then each row's maximum
// and sum of weights.
struct DecodeScratch {
  int64_t dims = 0;
  int64_t num_blocks = 0;

  static constexpr int64_t kRecordBytes = 128;
  constexpr int64_t slot_bytes() const { return kDecodeRows * (dims + 2) * 4; }
  constexpr int64_t slots_offset() const { return (num_blocks * kRecordBytes + 255) / 256 * 256; }
  constexpr int64_t bytes() const { return slots_offset() + num_blocks * 2 * slot_bytes(); }
};

// Decode: a persistent grid, cut as in stream-K. Each block has an even share of all tiles of all sequences
// and KV heads, for any context lengths. At most two of a block's pieces are parts of a larger context, hence
// the two slots.
struct DecodePlan {
  int dims = 0;    // compiled
  int stages = 0;  // of a warp's ring of sub-tiles
  int blocks_per_sm = 0;
  int64_t num_blocks = 0;
  int64_t shared_bytes = 0;     // total
  int64_t in_flight_bytes = 0;  // per multiprocessor: K and V on their way while a sub-tile is used
  DecodeScratch scratch;
};
// max_context_len bounds the blocks that can have work. `header_bytes`: shared memory of the kernel beside
// the rings.
DecodePlan PlanDecode(const AttentionChip& chip, const AttentionShape& shape, int64_t num_decodes,
                      int64_t max_context_len, int64_t header_bytes);

// The scratch in which prefill keeps sums of sections. For each KV head: a record of each part, then the
// parts; a part is a block's share of a tile whose context several blocks share. Then a stack for each block,
// of nodes of the tree that wait for their right neighbours. All parts and nodes are tiles of sums:
// kPrefillRows rows of f32, and the rows' maxima and sums of weights, twice for each lane that shares a row.
struct PrefillScratch {
  int64_t dims = 0;
  int64_t num_kv_heads = 0;
  int64_t blocks = 0;     // of a KV head
  int64_t max_parts = 0;  // of a KV head
  int64_t levels = 0;     // of a block's stack, the last for the sum of all

  static constexpr int64_t kRecordBytes = 16;
  constexpr int64_t tile_bytes() const { return (dims / 8 + 1) * (kPrefillRows / 16) * 32 * 16; }
  constexpr int64_t parts_offset() const {
    return (num_kv_heads * max_parts * kRecordBytes + 255) / 256 * 256;
  }
  constexpr int64_t stacks_offset() const { return parts_offset() + num_kv_heads * max_parts * tile_bytes(); }
  constexpr int64_t bytes() const { return stacks_offset() + num_kv_heads * blocks * levels * tile_bytes(); }
};

// Prefill: block (x, y) takes tiles of 128 rows of the queries times heads of KV head y, or spans of the
// contexts of such tiles.
struct PrefillPlan {
  int dims = 0;
  int tile_tokens = 0;
  int stages = 0;
  int blocks_per_sm = 0;
  int64_t tiles = 0;     // enough when heads are spread evenly; blocks take several tiles when heads are not
                         // spread evenly
  int64_t sections = 0;  // of the longest context, at most
  // For each KV head. With contexts of one section a block for each tile; with longer contexts no more blocks
  // than the chip holds at once, each with a stack.
  int64_t blocks = 0;
  int64_t shared_bytes = 0;
  PrefillScratch scratch;  // no bytes with contexts of one section
};
PrefillPlan PlanPrefill(const AttentionChip& chip, const AttentionShape& shape, int64_t num_seqs,
                        int64_t num_tokens, int64_t max_context_len, int64_t header_bytes);

// Sections of the spans into which prefill cuts contexts: the least power of two that leaves each of `blocks`
// about two spans, by all tiles' sections, `work`, and each context no more than kMaxSpans. Spans of a tile
// with several spans are more than half full on average, so there are fewer than 4 * blocks such spans. Any
// choice gives the same results.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr int64_t
    SpanSections(int64_t work, int64_t blocks, int64_t max_sections) {
  int64_t span = 1;
  while (span * 2 * blocks < work || span * kMaxSpans < max_sections) span *= 2;
  return span;
}

// Scratch for any shape with this head_dim, and any batch: decode's and prefill's, which take turns.
int64_t AttentionScratchBytes(const AttentionChip& chip, int64_t num_heads, int64_t head_dim,
                              int64_t max_context_len);

}  // namespace somnus
