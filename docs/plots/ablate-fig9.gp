set encoding utf8
set terminal svg size 800,526 fixed noenhanced font "DejaVu Sans,Helvetica,Arial,sans-serif,15" background "#ffffff" linewidth 1.2
set border 3 lc rgb "#444444"
set grid ytics lc rgb "#dddddd" lt 1 lw 0.7
set tics nomirror scale 0.5 textcolor rgb "#000000"
set style fill solid 0.85 noborder
set title "Speed, by periods of alignment"
set ylabel "tokens/s, median and quartiles"
set xlabel "KV period, tokens" . "\n"
set key outside below center horizontal Left reverse samplen 2.5 spacing 1.25 width -2.2
set logscale x 2
set autoscale xfix
set offsets graph 0.03, graph 0.03, 0, 0
set xrange [*:*]
set yrange [0:*]
$series0 << END
1 19.9352351 18.4053789 21.5372729 
2 21.3756691 19.9630705 22.2284345 
4 22.4324081 19.0036709 24.4875863 
8 21.9885455 19.9722011 23.2998507 
16 20.9791583 19.9634792 22.2379039 
END
$series1 << END
1.02 19.2119036 18.1738612 20.6142489 
2.04 20.0257287 18.5271868 21.0932302 
4.08 19.3489526 17.7418639 21.7469383 
8.16 18.781688 18.3675781 19.6938808 
16.32 18.7242915 17.6373554 21.2301432 
END
$series2 << END
1.04 19.8642244 18.3323963 21.791313 
2.08 19.9367482 18.2353386 21.0754834 
4.16 18.4406417 17.5771295 20.4230894 
8.32 19.5734768 18.4797162 21.013378 
16.64 18.7593453 17.3831234 19.4566709 
END
$series3 << END
1.06 19.4356235 18.4350372 19.998741 
2.12 19.2131968 17.9847097 20.7787022 
4.24 18.3372546 17.4505762 19.8879562 
8.48 18.697252 17.1325225 19.8652017 
16.96 17.9279082 15.8362166 18.9296379 
END
$series4 << END
1.08 19.1704071 18.8323338 19.5023491 
2.16 17.7958041 16.2601479 18.6728698 
4.32 18.0082922 17.5303354 18.5621919 
8.64 17.5454377 16.493256 19.1290527 
17.28 17.7481284 17.3499934 19.3815924 
END
plot \
	$series0 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#0072B2" notitle, \
	$series0 using 1:2 with linespoints lw 2 dt 1 pt 7 ps 0.8 lc rgb "#0072B2" title "token period 1", \
	$series1 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#D55E00" notitle, \
	$series1 using 1:2 with linespoints lw 2 dt 1 pt 5 ps 0.8 lc rgb "#D55E00" title "token period 2", \
	$series2 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#009E73" notitle, \
	$series2 using 1:2 with linespoints lw 2 dt 1 pt 9 ps 0.8 lc rgb "#009E73" title "token period 4", \
	$series3 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#CC79A7" notitle, \
	$series3 using 1:2 with linespoints lw 2 dt 1 pt 11 ps 0.8 lc rgb "#CC79A7" title "token period 8", \
	$series4 using 1:3:(0):($4 - $3) with vectors heads size screen 0.005,90 nofilled lw 1.2 lc rgb "#E69F00" notitle, \
	$series4 using 1:2 with linespoints lw 2 dt 1 pt 13 ps 0.8 lc rgb "#E69F00" title "token period 16"
