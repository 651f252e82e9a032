module github.com/gpushare/dra-driver-gpushare/tests/cluster/components/images

go 1.26.0
