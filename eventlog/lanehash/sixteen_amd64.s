#include "textflag.h"

// The rounds of SHA-256 (FIPS 180-4, 6.2.2) for sixteen messages at once, with the
// instructions of AVX-512 (Intel SDM volume 2): each register holds one word of all
// of them, so every instruction is the same step of sixteen hashes.
//
// Registers:
//	AX constants | BX a block's offset | CX blocks left | DX groups of rounds left
//	SI where the messages are | DI the states | R8 one message
//	Z0-Z7 the states, a to h | Z8-Z15 between steps | Z16-Z31 sixteen words

// ROUND is one round. K is the offset of its constant, W holds its words. What was
// h becomes a, and d becomes e: the next round names its registers one on.
#define ROUND(A, B, C, D, E, F, G, H, W, K) \
	VPADDD.BCST K(AX), W, Z8 \
	VPADDD      Z8, H, H \
	VPRORD      $6, E, Z9 \
	VPRORD      $11, E, Z10 \
	VPRORD      $25, E, Z11 \
	VPTERNLOGD  $0x96, Z9, Z10, Z11 \
	VMOVDQA64   E, Z12 \
	VPTERNLOGD  $0xca, G, F, Z12 \
	VPADDD      Z11, Z12, Z12 \
	VPADDD      Z12, H, H \
	VPADDD      H, D, D \
	VPRORD      $2, A, Z9 \
	VPRORD      $13, A, Z10 \
	VPRORD      $22, A, Z13 \
	VPTERNLOGD  $0x96, Z9, Z10, Z13 \
	VMOVDQA64   A, Z14 \
	VPTERNLOGD  $0xe8, C, B, Z14 \
	VPADDD      Z13, Z14, Z14 \
	VPADDD      Z14, H, H

// LATER makes the words W of sixteen rounds on, from those of 1, 9 and 14 rounds
// after them.
#define LATER(W, W1, W9, W14) \
	VPRORD     $7, W1, Z8 \
	VPRORD     $18, W1, Z9 \
	VPSRLD     $3, W1, Z10 \
	VPTERNLOGD $0x96, Z8, Z9, Z10 \
	VPRORD     $17, W14, Z11 \
	VPRORD     $19, W14, Z12 \
	VPSRLD     $10, W14, Z13 \
	VPTERNLOGD $0x96, Z11, Z12, Z13 \
	VPADDD     W9, W, W \
	VPADDD     Z10, Z13, Z13 \
	VPADDD     Z13, W, W

// LOAD takes sixteen words of one message.
#define LOAD(AT, R) \
	MOVQ      AT(SI), R8 \
	VMOVDQU32 (R8)(BX*1), R \
	VPSHUFB   Z31, R, R

// PAIRS and QUADS put words of two, then of four messages side by side.
#define PAIRS(R, S, LOW, HIGH) \
	VPUNPCKLDQ S, R, LOW \
	VPUNPCKHDQ S, R, HIGH

#define QUADS(R, S, LOW, HIGH) \
	VPUNPCKLQDQ S, R, LOW \
	VPUNPCKHQDQ S, R, HIGH

// WORDS puts the words of all sixteen side by side: W0 is a word, W4, W8 and W12
// those four, eight and twelve behind it. R, S, T and U are spent.
#define WORDS(R, S, T, U, W0, W4, W8, W12) \
	VSHUFI32X4 $0x88, S, R, W0 \
	VSHUFI32X4 $0xdd, S, R, R \
	VSHUFI32X4 $0x88, U, T, W8 \
	VSHUFI32X4 $0xdd, U, T, T \
	VSHUFI32X4 $0xdd, W8, W0, S \
	VSHUFI32X4 $0x88, W8, W0, W0 \
	VMOVDQA64  S, W8 \
	VSHUFI32X4 $0x88, T, R, W4 \
	VSHUFI32X4 $0xdd, T, R, W12

// KEEP adds the state before the block, which is still in memory.
#define KEEP(AT, R) \
	VPADDD    AT(DI), R, R \
	VMOVDQU32 R, AT(DI)

// func sixteenBlocks(states *[8][16]uint32, messages *[16]*byte, n int)
TEXT ·sixteenBlocks(SB), NOSPLIT, $0-24
	MOVQ states+0(FP), DI
	MOVQ messages+8(FP), SI
	MOVQ n+16(FP), CX
	XORQ BX, BX

block:
	VBROADCASTI32X4 bytesOfWords<>(SB), Z31

	LOAD(0, Z0)
	LOAD(8, Z1)
	LOAD(16, Z2)
	LOAD(24, Z3)
	LOAD(32, Z4)
	LOAD(40, Z5)
	LOAD(48, Z6)
	LOAD(56, Z7)
	LOAD(64, Z8)
	LOAD(72, Z9)
	LOAD(80, Z10)
	LOAD(88, Z11)
	LOAD(96, Z12)
	LOAD(104, Z13)
	LOAD(112, Z14)
	LOAD(120, Z15)

	PAIRS(Z0, Z1, Z16, Z17)
	PAIRS(Z2, Z3, Z18, Z19)
	PAIRS(Z4, Z5, Z20, Z21)
	PAIRS(Z6, Z7, Z22, Z23)
	PAIRS(Z8, Z9, Z24, Z25)
	PAIRS(Z10, Z11, Z26, Z27)
	PAIRS(Z12, Z13, Z28, Z29)
	PAIRS(Z14, Z15, Z30, Z31)

	QUADS(Z16, Z18, Z0, Z1)
	QUADS(Z17, Z19, Z2, Z3)
	QUADS(Z20, Z22, Z4, Z5)
	QUADS(Z21, Z23, Z6, Z7)
	QUADS(Z24, Z26, Z8, Z9)
	QUADS(Z25, Z27, Z10, Z11)
	QUADS(Z28, Z30, Z12, Z13)
	QUADS(Z29, Z31, Z14, Z15)

	WORDS(Z0, Z4, Z8, Z12, Z16, Z20, Z24, Z28)
	WORDS(Z1, Z5, Z9, Z13, Z17, Z21, Z25, Z29)
	WORDS(Z2, Z6, Z10, Z14, Z18, Z22, Z26, Z30)
	WORDS(Z3, Z7, Z11, Z15, Z19, Z23, Z27, Z31)

	VMOVDQU32 0(DI), Z0
	VMOVDQU32 64(DI), Z1
	VMOVDQU32 128(DI), Z2
	VMOVDQU32 192(DI), Z3
	VMOVDQU32 256(DI), Z4
	VMOVDQU32 320(DI), Z5
	VMOVDQU32 384(DI), Z6
	VMOVDQU32 448(DI), Z7
	LEAQ ·roundConstants(SB), AX
	MOVQ $3, DX

rounds:
	ROUND(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z16, 0)
	LATER(Z16, Z17, Z25, Z30)
	ROUND(Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z17, 4)
	LATER(Z17, Z18, Z26, Z31)
	ROUND(Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z18, 8)
	LATER(Z18, Z19, Z27, Z16)
	ROUND(Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z19, 12)
	LATER(Z19, Z20, Z28, Z17)
	ROUND(Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z20, 16)
	LATER(Z20, Z21, Z29, Z18)
	ROUND(Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z21, 20)
	LATER(Z21, Z22, Z30, Z19)
	ROUND(Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z22, 24)
	LATER(Z22, Z23, Z31, Z20)
	ROUND(Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z23, 28)
	LATER(Z23, Z24, Z16, Z21)
	ROUND(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z24, 32)
	LATER(Z24, Z25, Z17, Z22)
	ROUND(Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z25, 36)
	LATER(Z25, Z26, Z18, Z23)
	ROUND(Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z26, 40)
	LATER(Z26, Z27, Z19, Z24)
	ROUND(Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z27, 44)
	LATER(Z27, Z28, Z20, Z25)
	ROUND(Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z28, 48)
	LATER(Z28, Z29, Z21, Z26)
	ROUND(Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z29, 52)
	LATER(Z29, Z30, Z22, Z27)
	ROUND(Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z30, 56)
	LATER(Z30, Z31, Z23, Z28)
	ROUND(Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z31, 60)
	LATER(Z31, Z16, Z24, Z29)
	ADDQ $64, AX
	DECQ DX
	JNZ  rounds

	ROUND(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z16, 0)
	ROUND(Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z17, 4)
	ROUND(Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z18, 8)
	ROUND(Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z19, 12)
	ROUND(Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z20, 16)
	ROUND(Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z21, 20)
	ROUND(Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z22, 24)
	ROUND(Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z23, 28)
	ROUND(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z24, 32)
	ROUND(Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z25, 36)
	ROUND(Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z5, Z26, 40)
	ROUND(Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z4, Z27, 44)
	ROUND(Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z28, 48)
	ROUND(Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z29, 52)
	ROUND(Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z1, Z30, 56)
	ROUND(Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z0, Z31, 60)

	KEEP(0, Z0)
	KEEP(64, Z1)
	KEEP(128, Z2)
	KEEP(192, Z3)
	KEEP(256, Z4)
	KEEP(320, Z5)
	KEEP(384, Z6)
	KEEP(448, Z7)
	ADDQ $64, BX
	DECQ CX
	JNZ  block
	VZEROUPPER
	RET

// The bytes of each word the other way round.
DATA bytesOfWords<>+0(SB)/8, $0x0405060700010203
DATA bytesOfWords<>+8(SB)/8, $0x0c0d0e0f08090a0b
GLOBL bytesOfWords<>(SB), RODATA|NOPTR, $16
