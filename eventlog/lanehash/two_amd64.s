#include "textflag.h"

// The rounds of SHA-256 with the SHA extensions (Intel SDM volume 2B,
// SHA256RNDS2, SHA256MSG1, SHA256MSG2), for two messages in turns: what one
// message waits for, the other uses.
//
// Registers:
//	AX constants | CX blocks left | SI, DI the messages | R8, R9 the states
//	X0 constants plus words, which SHA256RNDS2 takes from there
//	X1, X2 and X7, X8 the states: f e b a, h g d c, low words first
//	X3-X6 and X9-X12 sixteen words of the messages
//	X13, X15 between steps | X14 the order of bytes in words

// ROUNDS are four rounds. K is the offset of their constants, W holds their words.
#define ROUNDS(K, W, FEBA, HGDC) \
	MOVOU       K(AX), X0 \
	PADDD       W, X0 \
	SHA256RNDS2 X0, FEBA, HGDC \
	PSHUFD      $0x0e, X0, X0 \
	SHA256RNDS2 X0, HGDC, FEBA

// LOAD takes the next four words of a block.
#define LOAD(AT, W) \
	MOVOU  AT, W \
	PSHUFB X14, W

// EXTEND completes the four words NEXT, of which SOON made the first half, from
// the eight before them.
#define EXTEND(LAST, W, NEXT, T) \
	MOVO       W, T \
	PALIGNR    $4, LAST, T \
	PADDD      T, NEXT \
	SHA256MSG2 W, NEXT

// SOON makes the first half of the four words that come sixteen behind LAST.
#define SOON(W, LAST) \
	SHA256MSG1 W, LAST

// func twoBlocks(a, b *[8]uint32, p, q *byte, n int)
TEXT ·twoBlocks(SB), NOSPLIT, $0-40
	MOVQ  a+0(FP), R8
	MOVQ  b+8(FP), R9
	MOVQ  p+16(FP), SI
	MOVQ  q+24(FP), DI
	MOVQ  n+32(FP), CX
	LEAQ  ·roundConstants(SB), AX
	MOVOU wordBytes<>(SB), X14
	MOVOU 0(R8), X1
	MOVOU 16(R8), X2
	MOVOU 0(R9), X7
	MOVOU 16(R9), X8

block:
	LOAD(0(SI), X3)
	ROUNDS(0, X3, X1, X2)
	LOAD(0(DI), X9)
	ROUNDS(0, X9, X7, X8)

	LOAD(16(SI), X4)
	ROUNDS(16, X4, X1, X2)
	SOON(X4, X3)
	LOAD(16(DI), X10)
	ROUNDS(16, X10, X7, X8)
	SOON(X10, X9)

	LOAD(32(SI), X5)
	ROUNDS(32, X5, X1, X2)
	SOON(X5, X4)
	LOAD(32(DI), X11)
	ROUNDS(32, X11, X7, X8)
	SOON(X11, X10)

	LOAD(48(SI), X6)
	ROUNDS(48, X6, X1, X2)
	EXTEND(X5, X6, X3, X13)
	SOON(X6, X5)
	LOAD(48(DI), X12)
	ROUNDS(48, X12, X7, X8)
	EXTEND(X11, X12, X9, X15)
	SOON(X12, X11)

	ROUNDS(64, X3, X1, X2)
	EXTEND(X6, X3, X4, X13)
	SOON(X3, X6)
	ROUNDS(64, X9, X7, X8)
	EXTEND(X12, X9, X10, X15)
	SOON(X9, X12)

	ROUNDS(80, X4, X1, X2)
	EXTEND(X3, X4, X5, X13)
	SOON(X4, X3)
	ROUNDS(80, X10, X7, X8)
	EXTEND(X9, X10, X11, X15)
	SOON(X10, X9)

	ROUNDS(96, X5, X1, X2)
	EXTEND(X4, X5, X6, X13)
	SOON(X5, X4)
	ROUNDS(96, X11, X7, X8)
	EXTEND(X10, X11, X12, X15)
	SOON(X11, X10)

	ROUNDS(112, X6, X1, X2)
	EXTEND(X5, X6, X3, X13)
	SOON(X6, X5)
	ROUNDS(112, X12, X7, X8)
	EXTEND(X11, X12, X9, X15)
	SOON(X12, X11)

	ROUNDS(128, X3, X1, X2)
	EXTEND(X6, X3, X4, X13)
	SOON(X3, X6)
	ROUNDS(128, X9, X7, X8)
	EXTEND(X12, X9, X10, X15)
	SOON(X9, X12)

	ROUNDS(144, X4, X1, X2)
	EXTEND(X3, X4, X5, X13)
	SOON(X4, X3)
	ROUNDS(144, X10, X7, X8)
	EXTEND(X9, X10, X11, X15)
	SOON(X10, X9)

	ROUNDS(160, X5, X1, X2)
	EXTEND(X4, X5, X6, X13)
	SOON(X5, X4)
	ROUNDS(160, X11, X7, X8)
	EXTEND(X10, X11, X12, X15)
	SOON(X11, X10)

	ROUNDS(176, X6, X1, X2)
	EXTEND(X5, X6, X3, X13)
	SOON(X6, X5)
	ROUNDS(176, X12, X7, X8)
	EXTEND(X11, X12, X9, X15)
	SOON(X12, X11)

	ROUNDS(192, X3, X1, X2)
	EXTEND(X6, X3, X4, X13)
	SOON(X3, X6)
	ROUNDS(192, X9, X7, X8)
	EXTEND(X12, X9, X10, X15)
	SOON(X9, X12)

	ROUNDS(208, X4, X1, X2)
	EXTEND(X3, X4, X5, X13)
	ROUNDS(208, X10, X7, X8)
	EXTEND(X9, X10, X11, X15)

	ROUNDS(224, X5, X1, X2)
	EXTEND(X4, X5, X6, X13)
	ROUNDS(224, X11, X7, X8)
	EXTEND(X10, X11, X12, X15)

	ROUNDS(240, X6, X1, X2)
	ROUNDS(240, X12, X7, X8)

	// The state before the block is still in memory.
	MOVOU 0(R8), X13
	MOVOU 0(R9), X15
	PADDD X13, X1
	PADDD X15, X7
	MOVOU 16(R8), X13
	MOVOU 16(R9), X15
	PADDD X13, X2
	PADDD X15, X8
	MOVOU X1, 0(R8)
	MOVOU X2, 16(R8)
	MOVOU X7, 0(R9)
	MOVOU X8, 16(R9)
	ADDQ  $64, SI
	ADDQ  $64, DI
	DECQ  CX
	JNZ   block
	RET

// func processor() (leaf1, leaf7 uint32)
TEXT ·processor(SB), NOSPLIT, $0-8
	MOVL $0, leaf7+4(FP)
	MOVL $0, AX
	CPUID
	MOVL AX, R8
	MOVL $1, AX
	CPUID
	MOVL CX, leaf1+0(FP)
	CMPL R8, $7
	JLT  done
	MOVL $7, AX
	MOVL $0, CX
	CPUID
	MOVL BX, leaf7+4(FP)

done:
	RET

// The bytes of each word the other way round.
DATA wordBytes<>+0(SB)/8, $0x0405060700010203
DATA wordBytes<>+8(SB)/8, $0x0c0d0e0f08090a0b
GLOBL wordBytes<>(SB), RODATA|NOPTR, $16
