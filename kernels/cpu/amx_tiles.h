// AMX tiles: their shapes, loads and stores. Part of kernels_amx.cc.
//
// Eight tiles of up to 16 rows of 64 bytes. Tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights; the
// numbers are part of the instructions. These functions are here because GCC's intrinsics are macros, and do
// not tell the compiler that memory is read.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

constexpr int64_t kTileRows = 16;

// The operand of LDTILECFG.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Rows at a distance of `stride` bytes.
template <int kTile>
SOMNUS_INLINE void TileLoad(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "n"(kTile) : "memory");
}
// As TileLoad, with a hint that the data should not displace other data in the L1 cache.
template <int kTile>
SOMNUS_INLINE void TileLoadOnce(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "n"(kTile) : "memory");
}
template <int kTile>
SOMNUS_INLINE void TileStore(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "n"(kTile) : "memory");
}
template <int kTile>
SOMNUS_INLINE void TileZero() {
  asm volatile("tilezero %%tmm%c0" ::"n"(kTile));
}
// __builtin_prefetch would only read: a prefetch for writing is an instruction of its own.
SOMNUS_INLINE void PrefetchToWrite(const void* line) {
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(line)));
}
// Tile kSum += tile kX times tile kW, f32 and bf16.
template <int kSum, int kX, int kW>
SOMNUS_INLINE void TileDot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(kSum), "n"(kX), "n"(kW));
}

// Gives the calling thread tiles for as long as the scope lives. A thread without tiles costs nothing at a
// context switch; giving a thread tiles takes about 50 ns. rows: of activations and sums, up to kTileRows.
// bytes_4 and bytes_5: of a row of tiles 4 and 5, four for each row of tiles 6 and 7.
class TileScope {
 public:
  TileScope(int64_t rows, int64_t bytes_4, int64_t bytes_5) {
    TileShapes shapes;
    for (int t = 0; t < 6; ++t) {
      shapes.rows[t] = static_cast<uint8_t>(rows);
      shapes.row_bytes[t] = static_cast<uint16_t>(t == 4 ? bytes_4 : t == 5 ? bytes_5 : 64);
    }
    shapes.rows[6] = static_cast<uint8_t>(bytes_4 / 4);
    shapes.rows[7] = static_cast<uint8_t>(bytes_5 / 4);
    shapes.row_bytes[6] = shapes.row_bytes[7] = 64;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  ~TileScope() { asm volatile("tilerelease"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Rows [begin, begin + rows) cut into tiles of one height, so that one TileScope serves all: the last tile
// may hold rows of the tile before, which are then computed twice, to the same bits.
struct RowTiles {
  RowTiles(int64_t begin, int64_t rows)
      : begin(begin),
        rows(rows),
        count((rows + kTileRows - 1) / kTileRows),
        height((rows + count - 1) / count) {}
  int64_t Row(int64_t tile) const { return begin + Min(tile * height, rows - height); }
  int64_t pairs() const { return (count + 1) / 2; }

  int64_t begin;
  int64_t rows;
  int64_t count;
  int64_t height;
};

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
