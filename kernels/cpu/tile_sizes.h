#pragma once
// The sizes of tiles of each instruction set: a unit of kernels_*.cc cuts a product into these tiles, by the
// name of the unit's namespace (kSizes in tile_impl.h). Sizes decide the speed of an instruction set, never
// its results: the sum of an output element is a single chain for any tile. Arm's sizes were chosen by the
// number of registers and have not been timed. Sizes that are the same for every set stand where they are
// used; sizes of AMX's tiles in amx_linear_impl.h.

namespace somnus::cpu {

// Rows are of activations, vectors are of columns of a panel, 4, 8 or 16 floats each (kW in simd.h). Rows
// times vectors are the accumulators, which stay in registers beside the vectors of weights.
struct TileSizes {
  // Tiles of Linear, of attention, and of expanded fp8 weights.
  int max_rows;       // of a tile
  int vectors[4];     // of a tile of 1, 2, 3 and of more rows
  int max_tall_rows;  // of a tile one vector wide; 0 where there are no such tiles
  // Where so many tiles or fewer, but several, use a panel in turn, all prefetch the next one at an even
  // pace. Else one tile prefetches the next panel.
  int paced_tiles;
  int l1_rows[2];  // least and most rows of a tile that prefetches bf16 weights into L1, not L2
  // Most rows of a tile that leaves prefetches to the CPU where KernelTable::reads_ahead is set: of bf16
  // weights, and of quantized weights.
  int unaided_rows[2];
  // 16-bit weights that are multiplied as f32: the number of rows from which on weights are expanded before,
  // and rows of a tile.
  int min_f32_rows;
  int max_f32_rows;
  // Quantized weights: taken directly from memory for a few rows, expanded for more.
  int max_stored_rows;
  int stored_vectors[4];  // of a tile of 1, 2, 3 and of more rows
  int max_expanded_rows;  // of a tile
  int expanded_vectors;
  // fp8 weights: the largest number of rows for which weights are expanded in registers; at most max_rows.
  int max_register_rows;
};

// As many chains as multiply-adds are under way at once: on NEON a single row has a whole panel. Where a tile
// has a whole panel, memory is read in order: four vectors of 8 lanes, for one or two rows, or two vectors of
// 16.
namespace tile_sizes {

// clang-format off
//                                          Linear: rows, vectors, tall, paced, L1, unaided, f32 | quantized, stored and expanded | fp8
inline constexpr TileSizes portable     = { 4, {2, 2, 2, 2},  0, 0, {0, 0}, {0, 0}, 24,  4,   4, {2, 2, 2, 2}, 4, 1,   4};
inline constexpr TileSizes avx2         = { 5, {4, 4, 2, 2},  0, 4, {1, 1}, {0, 0}, 24,  6,   4, {4, 4, 2, 1}, 4, 1,   5};
inline constexpr TileSizes avx_vnni     = { 5, {4, 4, 2, 2},  0, 4, {1, 1}, {0, 0}, 24,  6,   4, {4, 4, 2, 1}, 6, 1,   5};
// With more rows bf16 weights, which take four vectors, would leave too few registers.
inline constexpr TileSizes avx512       = {12, {2, 2, 2, 2},  0, 0, {1, 2}, {0, 0}, 96, 14,   4, {2, 2, 2, 2}, 4, 2,   8};
inline constexpr TileSizes avx512_vnni  = {12, {2, 2, 2, 2},  0, 0, {1, 2}, {0, 0}, 96, 14,   4, {2, 2, 2, 2}, 6, 2,   8};
inline constexpr TileSizes avx512_bf16  = {14, {2, 2, 2, 2}, 18, 0, {2, 2}, {5, 1}, 96, 14,   4, {2, 2, 2, 2}, 6, 2,   8};
inline constexpr TileSizes avx512_vbmi  = avx512_bf16;  // replaces only its attention over bytes
inline constexpr TileSizes amx          = avx512_bf16;  // for ops outside AMX's tiles
inline constexpr TileSizes neon         = { 8, {8, 4, 4, 2},  0, 0, {0, 0}, {0, 0}, 24,  8,   4, {4, 4, 2, 2}, 4, 2,   8};
inline constexpr TileSizes neon_dotprod = { 8, {8, 4, 4, 2},  0, 0, {0, 0}, {0, 0}, 24,  8,   4, {4, 4, 2, 2}, 6, 2,   8};
inline constexpr TileSizes neon_bf16    = { 8, {8, 4, 4, 2},  0, 0, {0, 0}, {0, 0}, 24,  8,   4, {4, 4, 2, 2}, 6, 2,   8};
// clang-format on

}  // namespace tile_sizes

// Products of bf16 weights by BFMMLA, which multiplies rows in pairs (neon_linear_impl.h).
struct MatrixTileSizes {
  int max_rows;
  int vectors[3];  // of a tile of one, two and more pairs of rows
};
inline constexpr MatrixTileSizes kBfmmlaSizes = {10, {8, 4, 2}};

}  // namespace somnus::cpu
