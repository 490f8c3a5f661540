// AMX tiles: their shapes and what moves them. Part of kernels_amx.cc.
//
// Eight tiles of up to 16 rows of 64 bytes. Tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights; the
// numbers are part of the instructions. GCC's intrinsics do not tell the compiler what they read: whoever has
// written memory that a tile is loaded from calls TileFence first.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

constexpr int64_t kTileRows = 16;

// What LDTILECFG reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

SOMNUS_INLINE void TileFence() { asm volatile("" ::: "memory"); }

// Gives the calling thread tiles for as long as this lives. A thread that has none costs nothing when it is
// switched; giving it some takes about 50 ns. rows: of activations and sums, up to kTileRows. inner_bytes: of
// a row of activations, four for each row of weights.
class TileScope {
 public:
  TileScope(int64_t rows, int64_t inner_bytes) {
    TileShapes shapes;
    for (int t = 0; t < 8; ++t) {
      const bool weights = t >= 6, activations = t == 4 || t == 5;
      shapes.rows[t] = static_cast<uint8_t>(weights ? inner_bytes / 4 : rows);
      shapes.row_bytes[t] = static_cast<uint16_t>(activations ? inner_bytes : 64);
    }
    asm volatile("ldtilecfg %0" ::"m"(shapes));
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Rows [begin, begin + rows) cut into tiles of one height, so that one TileScope serves all: the last tile
// may hold rows of the one before it, which are then computed twice, to the same bits.
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
