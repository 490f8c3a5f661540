// The sections of a context: each added up from nothing, and folded in ascending order. Where the threads
// share a context, each thread has some sections, and the last thread folds all sections: the same operations
// in the same order, and so the same bits. Part of kernels_*.cc.

namespace somnus::cpu::SOMNUS_ISA {
namespace {

inline void CopyRow(int64_t r, int64_t dims, const Sums& from, const Sums& to) {
  __builtin_memcpy(to.acc + r * dims, from.acc + r * dims, static_cast<size_t>(dims) * 4);
  to.max[r] = from.max[r];
  to.sum[r] = from.sum[r];
}

// `older` becomes the sums of both. `newer` are of the section that begins at `begin`; a row that sees none
// of the section's tokens has nothing newer, and a row that sees no earlier token has nothing older.
template <typename A>
void FoldSection(const A& a, int64_t rows, int64_t begin, const Sums& newer, const Sums& older) {
  for (int64_t r = 0; r < rows; ++r) {
    if (!a.Sees(r, begin, begin + SectionTokens(a.block_size))) continue;
    if (a.firsts[r] >= begin) {
      CopyRow(r, a.dims, newer, older);
      continue;
    }
    const float top = newer.max[r] > older.max[r] ? newer.max[r] : older.max[r];
    const VF keep = Exp(Set(older.max[r] - top)), add = Exp(Set(newer.max[r] - top));
    float* const to = older.acc + r * a.dims;
    const float* const from = newer.acc + r * a.dims;
    for (int64_t d = 0; d < a.dims; d += kW) Store(to + d, Fma(Load(to + d), keep, Load(from + d) * add));
    older.sum[r] = older.sum[r] * keep[0] + newer.sum[r] * add[0];
    older.max[r] = top;
  }
}

template <typename A>
Sums SumsOf(const A& a) {
  return {a.acc, a.max, a.sum};
}

template <typename A>
void SetSums(A& a, const Sums& sums) {
  a.acc = sums.acc;
  a.max = sums.max;
  a.sum = sums.sum;
}

// All queries of the item over all of their context.
template <typename A>
void RunAttention(A a, char* scratch) {
  a.Carve(scratch);
  const int64_t total = (a.item.query_end - a.item.query_begin) * a.args.num_heads;
  const int64_t section = SectionTokens(a.block_size);
  for (int64_t row_begin = 0; row_begin < total; row_begin += kAttentionRows) {
    const int64_t rows = Min(kAttentionRows, total - row_begin);
    a.Prepare(row_begin, rows);
    const int64_t limit = a.limits[rows - 1], first_end = (a.firsts[0] / section + 1) * section;
    a.AddTokens(rows, first_end - section, Min(limit, first_end));
    for (int64_t begin = first_end; begin < limit; begin += section) {
      const Sums sums = SumsOf(a);
      if (begin == first_end) {
        SetSums(a, a.older);
        a.older = sums;
      }
      a.Restart(rows);
      a.AddTokens(rows, begin, Min(limit, begin + section));
      FoldSection(a, rows, begin, SumsOf(a), a.older);
    }
    if (limit > first_end) {
      const Sums newer = SumsOf(a);
      SetSums(a, a.older);
      a.older = newer;
    }
    a.Finish(row_begin, rows);
  }
}

inline Sums SumsAt(char* partial, int64_t rows, int64_t dims) {
  float* const acc = reinterpret_cast<float*>(partial);
  return {acc, acc + rows * dims, acc + rows * dims + rows};
}

// The sums of one section of an item of at most kAttentionRows rows, to `partial`.
template <typename A>
void RunSection(A a, int64_t section, char* scratch, char* partial) {
  a.Carve(scratch);
  const int64_t rows = (a.item.query_end - a.item.query_begin) * a.args.num_heads;
  const int64_t begin = section * SectionTokens(a.block_size);
  a.Prepare(0, rows);
  a.AddTokens(rows, begin, Min(a.limits[rows - 1], begin + SectionTokens(a.block_size)));
  const Sums to = SumsAt(partial, rows, a.dims);  // without the room that tiles need beyond the last row
  __builtin_memcpy(to.acc, a.acc, static_cast<size_t>(rows * a.dims) * 4);
  __builtin_memcpy(to.max, a.max, static_cast<size_t>(rows) * 4);
  __builtin_memcpy(to.sum, a.sum, static_cast<size_t>(rows) * 4);
}

// The item's output from the sums of all sections up to `sections`, from the first that a row sees. The sums
// are `stride` bytes apart and are changed.
template <typename A>
void JoinSections(A a, int64_t sections, char* scratch, char* partials, int64_t stride) {
  a.Carve(scratch);
  const int64_t rows = (a.item.query_end - a.item.query_begin) * a.args.num_heads;
  a.Prepare(0, rows);
  SetSums(a, SumsAt(partials, rows, a.dims));
  const int64_t first = a.firsts[0] / SectionTokens(a.block_size);
  for (int64_t s = first + 1; s < sections; ++s) {
    FoldSection(a, rows, s * SectionTokens(a.block_size),
                SumsAt(partials + (s - first) * stride, rows, a.dims), SumsOf(a));
  }
  a.Finish(0, rows);
}

// The functions of an instruction set for one kind of attention.
template <typename A>
struct AttentionOf {
  static void Whole(const AttentionArgs& args, const AttentionItem& item, char* scratch) {
    RunAttention(A{args, item}, scratch);
  }
  static void Section(const AttentionArgs& args, const AttentionItem& item, int64_t section, char* scratch,
                      char* partial) {
    RunSection(A{args, item}, section, scratch, partial);
  }
  static void Join(const AttentionArgs& args, const AttentionItem& item, int64_t sections, char* scratch,
                   char* partials, int64_t stride) {
    JoinSections(A{args, item}, sections, scratch, partials, stride);
  }
  static constexpr AttentionKernels kKernels = {Whole, Section, Join};
};

// Attention over bytes that S reads as f32: expanded once where that serves several tiles of rows. Both ways
// compute the same bits.
template <typename S>
struct ByteAttention {
  using Expanded = AttentionOf<ExpandedAttention<AsF32<S>>>;
  using Direct = AttentionOf<Attention<S>>;

  static bool HasSeveralTiles(const AttentionArgs& args, const AttentionItem& item) {
    return (item.query_end - item.query_begin) * args.num_heads > kMaxRows;
  }
  static void Whole(const AttentionArgs& args, const AttentionItem& item, char* scratch) {
    (HasSeveralTiles(args, item) ? Expanded::Whole : Direct::Whole)(args, item, scratch);
  }
  static void Section(const AttentionArgs& args, const AttentionItem& item, int64_t section, char* scratch,
                      char* partial) {
    (HasSeveralTiles(args, item) ? Expanded::Section : Direct::Section)(args, item, section, scratch,
                                                                        partial);
  }
  static void Join(const AttentionArgs& args, const AttentionItem& item, int64_t sections, char* scratch,
                   char* partials, int64_t stride) {
    (HasSeveralTiles(args, item) ? Expanded::Join : Direct::Join)(args, item, sections, scratch, partials,
                                                                  stride);
  }
  static constexpr AttentionKernels kKernels = {Whole, Section, Join};
};

}  // namespace
}  // namespace somnus::cpu::SOMNUS_ISA
