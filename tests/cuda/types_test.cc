// The storage types against their definition: every pattern, every tie between neighbours.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cuda_types.h"

namespace somnus::cuda_emulated {
namespace {

// A small float by its definition.
struct Format {
  int exponent_bits, mantissa_bits, bias;
  bool infinities;  // f8e4m3 has no infinity, and NaN is all ones alone
  int bits() const { return 1 + exponent_bits + mantissa_bits; }
};
template <typename T>
constexpr Format kFormat = std::is_same_v<T, bf16>  ? Format{8, 7, 127, true}
                           : std::is_same_v<T, f16> ? Format{5, 10, 15, true}
                                                    : Format{4, 3, 7, false};

template <typename T>
double ByDefinition(uint32_t pattern) {
  const Format f = kFormat<T>;
  const int mantissa = static_cast<int>(pattern & ((1u << f.mantissa_bits) - 1));
  const int exponent = static_cast<int>(pattern >> f.mantissa_bits & ((1u << f.exponent_bits) - 1));
  const double sign = (pattern >> (f.bits() - 1)) != 0 ? -1 : 1;
  const int top = (1 << f.exponent_bits) - 1;
  if (f.infinities && exponent == top) return mantissa == 0 ? sign * INFINITY : NAN;
  if (!f.infinities && exponent == top && mantissa == (1 << f.mantissa_bits) - 1) return NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - f.bias - f.mantissa_bits);
}

template <typename T>
T Pattern(uint32_t bits) {
  return T{static_cast<decltype(T::bits)>(bits)};
}

template <typename T>
class TypesTest : public testing::Test {};
using Types = testing::Types<bf16, f16, f8e4m3>;
TYPED_TEST_SUITE(TypesTest, Types);

TYPED_TEST(TypesTest, EveryPatternIsItsValueAndComesBack) {
  for (uint32_t i = 0; i < 1u << kFormat<TypeParam>.bits(); ++i) {
    const double value = ByDefinition<TypeParam>(i);
    const float converted = ToFloat(Pattern<TypeParam>(i));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(converted)) << i;
      ASSERT_TRUE(std::isnan(ToFloat(FromFloat<TypeParam>(converted)))) << i;
      continue;
    }
    ASSERT_EQ(converted, value) << i;
    ASSERT_EQ(std::signbit(converted), std::signbit(value)) << i;
    if (std::isinf(value) && !kFormat<TypeParam>.infinities) continue;
    ASSERT_EQ(FromFloat<TypeParam>(converted).bits, i);
  }
}

TYPED_TEST(TypesTest, RoundsToNearestAndTiesToEven) {
  // Positive patterns are in the order of the values.
  for (uint32_t i = 0; i + 1 < 1u << (kFormat<TypeParam>.bits() - 1); ++i) {
    const double low = ByDefinition<TypeParam>(i), high = ByDefinition<TypeParam>(i + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float middle = static_cast<float>((low + high) / 2);
    if (middle == (low + high) / 2) {  // else below f32's smallest
      for (const float sign : {1.0f, -1.0f}) {
        const uint32_t bit = sign < 0 ? 1u << (kFormat<TypeParam>.bits() - 1) : 0;
        ASSERT_EQ(FromFloat<TypeParam>(sign * middle).bits, (i + i % 2) | bit) << i;
        ASSERT_EQ(FromFloat<TypeParam>(sign * std::nextafter(middle, 0.0f)).bits, i | bit) << i;
        ASSERT_EQ(FromFloat<TypeParam>(sign * std::nextafter(middle, INFINITY)).bits, (i + 1) | bit) << i;
      }
    }
  }
}

TEST(Types, Overflow) {
  const float max = std::numeric_limits<float>::max();
  EXPECT_EQ(FromFloat<bf16>(max).bits, 0x7f80);
  EXPECT_EQ(FromFloat<bf16>(-INFINITY).bits, 0xff80);
  EXPECT_EQ(FromFloat<f16>(65519.99f).bits, 0x7bff);
  EXPECT_EQ(FromFloat<f16>(65520.0f).bits, 0x7c00);  // the tie goes to the even neighbour, infinity
  EXPECT_EQ(FromFloat<f16>(-max).bits, 0xfc00);
  for (const float x : {448.0f, 463.9f, 464.0f, 500.0f, max, INFINITY}) {
    EXPECT_EQ(FromFloat<f8e4m3>(x).bits, 0x7e) << x;
    EXPECT_EQ(FromFloat<f8e4m3>(-x).bits, 0xfe) << x;
  }
  EXPECT_EQ(FromFloat<bf16>(NAN).bits, 0x7fff);
  EXPECT_EQ(FromFloat<f16>(NAN).bits, 0x7fff);
  EXPECT_EQ(FromFloat<f8e4m3>(-NAN).bits, 0x7f);
}

TEST(Types, TinyValuesBecomeSignedZeros) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(FromFloat<bf16>(-tiny).bits, 0x8000);
  EXPECT_EQ(FromFloat<f16>(-tiny).bits, 0x8000);
  EXPECT_EQ(FromFloat<f8e4m3>(-tiny).bits, 0x80);
  EXPECT_EQ(FromFloat<f16>(0x1p-25f).bits, 0);
  EXPECT_EQ(FromFloat<f16>(0x1.000002p-25f).bits, 1);
  EXPECT_EQ(FromFloat<f8e4m3>(0x1p-10f).bits, 0);
  EXPECT_EQ(FromFloat<f8e4m3>(0x1.000002p-10f).bits, 1);
}

TEST(Types, PairsKeepTheirOrder) {
  EXPECT_EQ(Pack2<bf16>(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(Pack2<f16>(1.0f, -2.0f), 0xc0003c00u);
  const float2 pair = Unpack2<f16>(0xc0003c00u);
  EXPECT_EQ(pair.x, 1.0f);
  EXPECT_EQ(pair.y, -2.0f);
  EXPECT_EQ(PackF8x2(1.0f, -2.0f), 0xc038);
  EXPECT_EQ(UnpackF8x2(0xc038).x, 1.0f);
  EXPECT_EQ(UnpackF8x2(0xc038).y, -2.0f);
  // Every f8e4m3 is exact in both.
  for (uint32_t i = 0; i < 256; ++i) {
    const float value = ToFloat(Pattern<f8e4m3>(i));
    if (std::isnan(value)) continue;
    EXPECT_EQ(Unpack2<bf16>(F8x2To<bf16>(static_cast<uint16_t>(i << 8))).y, value);
    EXPECT_EQ(Unpack2<f16>(F8x2To<f16>(static_cast<uint16_t>(i << 8))).y, value);
  }
}

// Every i8 is exact in both types that are multiplied.
TEST(Types, Int8) {
  for (int i = -127; i <= 127; ++i) {
    const float value = static_cast<float>(i);
    EXPECT_EQ(ToFloat(i8{static_cast<int8_t>(i)}), value);
    EXPECT_EQ(FromFloat<i8>(value).bits, i);
    const uint16_t pair = PackI8x2(value, -value);
    EXPECT_EQ(Unpack2<bf16>(I8x2To<bf16>(pair)).x, value);
    EXPECT_EQ(Unpack2<bf16>(I8x2To<bf16>(pair)).y, -value);
    EXPECT_EQ(Unpack2<f16>(I8x2To<f16>(pair)).x, value);
    EXPECT_EQ(Unpack2<f16>(I8x2To<f16>(pair)).y, -value);
    if (i == 127) break;
    const float tie = value + 0.5f;
    EXPECT_EQ(FromFloat<i8>(tie).bits, i % 2 == 0 ? i : i + 1);
    EXPECT_EQ(FromFloat<i8>(std::nextafter(tie, -1e9f)).bits, i);
    EXPECT_EQ(FromFloat<i8>(std::nextafter(tie, 1e9f)).bits, i + 1);
  }
  EXPECT_EQ(FromFloat<i8>(127.00001f).bits, 127);
  EXPECT_EQ(FromFloat<i8>(NAN).bits, 0);
  static_assert(kDataType<i8> == DataType::kI8);
}

TEST(Types, VectorsAreOneAccess) {
  static_assert(sizeof(Vec16<bf16>) == 16 && alignof(Vec16<bf16>) == 16 && kVecSize<bf16> == 8);
  static_assert(sizeof(Vec<float, 2>) == 8 && alignof(Vec<float, 2>) == 8);
  static_assert(std::is_trivially_default_constructible_v<bf16> && std::is_trivially_copyable_v<Vec16<f16>>);
  alignas(16) float values[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  Vec<float, 4> v = LoadVec<float, 4>(values + 4);
  v[1] = 50;
  StoreVec(values, v);
  EXPECT_EQ(values[0], 4);
  EXPECT_EQ(values[1], 50);
  EXPECT_EQ(values[3], 7);
}

TEST(Types, Dispatch) {
  int size = 0;
  const auto record = [&](auto tag) { size = sizeof(typename decltype(tag)::type); };
  EXPECT_TRUE(DispatchAct(DataType::kF32, record));
  EXPECT_EQ(size, 4);
  EXPECT_TRUE(DispatchAct(DataType::kF16, record));
  EXPECT_EQ(size, 2);
  EXPECT_FALSE(DispatchAct(DataType::kF8E4M3, record));
  static_assert(kDataType<bf16> == DataType::kBF16 && kDataType<f8e4m3> == DataType::kF8E4M3);
}

}  // namespace
}  // namespace somnus::cuda_emulated
