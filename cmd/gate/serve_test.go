package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnectionsLeaveFilesForTheRest(t *testing.T) {
	for _, c := range []struct {
		files                  uint64
		most, each             int
		fitting, fittingOfEach int
	}{
		{524288, 4096, 1024, 4096, 1024},
		{8192, 4096, 1024, 4096, 1024},
		{4096, 4096, 1024, 2048, 512},
		{1024, 4096, 1024, 512, 128},
		{1024, 4096, 10, 512, 10},
		{1024, 300, 300, 300, 300},
		{2, 4096, 1024, 1, 1},
		{1<<64 - 1, 1_000_000, 1024, 1_000_000, 1024}, // RLIM_INFINITY
	} {
		most, each := connsWithin(c.files, c.most, c.each)
		require.Equal(t, []int{c.fitting, c.fittingOfEach}, []int{most, each}, "%+v", c)
	}
}
